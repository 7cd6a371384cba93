// The thrift service of a kestrelmq server: framed transport, binary or compact protocol.
//
// A frame holds at most 64 MiB, and a request at most 100000 values (items, ids and fields). A
// request that fails is answered with a TApplicationException that says why.

namespace java kestrel
namespace py kestrel
namespace rb Kestrel

// An item that was read. confirm and abort take its id: a random number of 53 bits, which only its
// reader knows. It is 0 when the item was removed for good.
struct Item {
  1: binary data
  2: i64 id
}

struct QueueInfo {
  // The first item, which stays in the queue; absent when there is none.
  1: optional binary head_item
  2: i64 items
  3: i64 bytes
  4: i64 journal_bytes
  // How long the first item has waited, in milliseconds; 0 when there is none.
  5: i64 age
  6: i32 waiters
  7: i32 open_transactions
}

// A reserved item. finish, release and extend take its read_id, which only its reader
// knows.
struct ReservedItem {
  1: string queue_name
  2: string read_id
  // How often the item was handed out, this time included.
  3: i32 deliveries
  // When it was added, and when it expires (0 is never), in milliseconds since 1970.
  4: i64 add_time
  5: i64 expiry
  6: binary data
}

struct Reserved {
  1: list<ReservedItem> items
  // Whether the tag is done: its items were finished before.
  2: bool is_done
}

// An item of a browse, which stays in its queue; times as in ReservedItem.
struct BrowsedItem {
  // 0 is the head of the queue.
  1: i64 place
  2: i64 add_time
  3: i64 expiry
  4: binary data
}

struct Page {
  1: list<BrowsedItem> items
  // How many items wait in the queue.
  2: i64 total
  // The offset at which to go on; absent at the end of the queue.
  3: optional i64 next_offset
}

struct Moved {
  1: i64 count
  // Why it ended early; absent if it did not.
  2: optional string stopped
}

// What kill_client takes is the id. The client has connected at `since` (milliseconds since 1970),
// and has reads open, by queue. If its present request takes time, queue_name is that of its queue;
// a reserve may wait on several, which have commas between them.
struct ConnectedClient {
  1: i64 id
  2: string address
  3: string protocol
  4: i64 since
  5: i64 replies
  6: string state
  7: optional string queue_name
  8: map<string, i32> open_reads
}

enum Operations {
  READS = 1
  WRITES = 2
  ALL = 3
}

// Whether a queue keeps a journal.
enum Journal {
  AS_OTHERS = 0
  YES = 1
  NO = 2
}

enum Status {
  NOT_CONFIGURED = 0
  QUIESCENT = 1
  READ_ONLY = 2
  UP = 3
}

service Kestrel {
  // Adds items, in order, until one is refused; returns how many were accepted. They expire after
  // expiration_msec milliseconds; 0 is never.
  i32 put(1: string queue_name, 2: list<binary> items, 3: i32 expiration_msec = 0)

  // Adds items as put does; they wait in the queue only after delay_msec milliseconds, from which
  // expiration_msec counts, too. A method of its own: in some languages, every call of put would
  // have to name another parameter of it.
  i32 put_delayed(1: string queue_name, 2: list<binary> items, 3: i64 delay_msec,
                  4: i32 expiration_msec = 0)

  // Adds items as put_delayed does, such that the call may be repeated. A producer numbers its items,
  // these from first_sequence on. One is stored only if its number is above that of the producer's
  // last item in this queue. Returns how many are stored, by this call or an earlier one.
  i32 put_once(1: string queue_name, 2: list<binary> items, 3: string producer,
               4: i64 first_sequence, 5: i32 expiration_msec = 0, 6: i64 delay_msec = 0)

  // Reads items until there are max_items or timeout_msec milliseconds have passed. With 10000 items
  // or about 16 MiB it returns without waiting for more. With auto_abort_msec 0 the items are removed
  // at once. Otherwise each is an open read, which outlives the connection and ends by confirm, by
  // abort, or by itself after that many milliseconds: then the item goes back to the head of the
  // queue. A connection with as many open reads of the queue as it may have gets nothing, at once.
  list<Item> get(1: string queue_name, 2: i32 max_items, 3: i32 timeout_msec = 0,
                 4: i32 auto_abort_msec = 0)

  // Both end open reads, and return how many of the ids were open.
  i32 confirm(1: string queue_name, 2: set<i64> ids)
  i32 abort(1: string queue_name, 2: set<i64> ids)

  // Reserves up to max_items items (1 to 1000, about 1 MiB) of the queues, which are asked in this
  // order; waits up to timeout_msec milliseconds for one. A reserved read outlives its connection
  // and a restart of the server. It ends by finish, by release, or lease_msec milliseconds later:
  // then the item goes back to the head of its queue. With an owner, it is reserved for at most
  // grace_msec milliseconds after the last connection ended that named the owner. With a tag, which
  // is NAME:EPOCH:PART, the same items are returned again until they are finished.
  Reserved reserve(1: list<string> queue_names, 2: i32 max_items, 3: i64 lease_msec,
                   4: i64 timeout_msec = 0, 5: string tag = "", 6: string owner = "",
                   7: i64 grace_msec = 5000)

  // These are for some reads, or else for those of a tag, or of an owner in this queue; they return
  // how many of the reads were reserved. finish of a tag that is done returns how many it had.
  i32 finish(1: string queue_name, 2: list<string> read_ids, 3: string tag = "")

  // The items may be read again after delay_msec milliseconds; -1 is the queue's retry_delay. With
  // uncounted, they were not delivered; with dead, they go to the dead-letter queue.
  i32 release(1: string queue_name, 2: list<string> read_ids, 3: string tag = "",
              4: string owner = "", 5: i64 delay_msec = -1, 6: bool uncounted = false,
              7: bool dead = false)

  // Their leases end lease_msec milliseconds from now. extend_owner is for all reads of an owner.
  i32 extend(1: string queue_name, 2: i64 lease_msec, 3: list<string> read_ids, 4: string tag = "")
  i32 extend_owner(1: string owner, 2: i64 lease_msec)

  // Refuses the tags of this name up to an epoch from now on; returns how many were open or done.
  i32 retire(1: string queue_name, 2: string name, 3: i64 epoch)

  QueueInfo peek(1: string queue_name)

  // Items from an offset on, which stay in the queue; at most 500, or about 1 MiB. With search, only
  // items that have this text, or that match this regular expression; at most 10000 are searched.
  Page browse(1: string queue_name, 2: i64 offset, 3: i32 max_items, 4: binary search = "",
              5: bool is_pattern = false)

  // Moves or copies the first items of a queue to another one, in order; max_items -1 is all of
  // them. The target has an item before it leaves the queue. redrive moves all dead letters to the
  // queue that they came from, or to another one.
  Moved move(1: string queue_name, 2: string target, 3: i64 max_items = -1)
  Moved copy(1: string queue_name, 2: string target, 3: i64 max_items = -1)
  Moved redrive(1: string queue_name, 2: string target = "")

  // What is paused stays paused over a restart.
  void pause_queue(1: string queue_name, 2: Operations operations)
  void resume_queue(1: string queue_name, 2: Operations operations = Operations.ALL)

  // Creates a queue with settings of its own, or gives it others, also over a restart. -1 is as for
  // other queues. The queue goes when it is empty and was created expires_msec ago, or earlier.
  void declare_queue(1: string queue_name, 2: bool fanout_only = false,
                     3: Journal journal = Journal.AS_OTHERS, 4: i64 expires_msec = -1,
                     5: i64 max_age_msec = -1, 6: i64 max_items = -1)

  // Who is connected, in the order in which they connected, but for the first `offset`; at most 100.
  list<ConnectedClient> get_clients(1: i32 offset = 0)
  void kill_client(1: i64 id)

  void flush_queue(1: string queue_name)
  void flush_all_queues()
  void delete_queue(1: string queue_name)

  Status current_status()
  void set_status(1: Status status)
  string get_version()
}
