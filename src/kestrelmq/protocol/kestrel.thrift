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

  QueueInfo peek(1: string queue_name)

  void flush_queue(1: string queue_name)
  void flush_all_queues()
  void delete_queue(1: string queue_name)

  Status current_status()
  void set_status(1: Status status)

  // Signs the connection in. Where the server has users, everything else but get_version needs that.
  void login(1: string user, 2: string password)

  string get_version()
}
