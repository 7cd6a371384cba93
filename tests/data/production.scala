import com.twitter.conversions.storage._
import com.twitter.conversions.time._
import com.twitter.logging.config._
import com.twitter.ostrich.admin.config._
import net.lag.kestrel.config._

new KestrelConfig {
  listenAddress = "0.0.0.0"
  memcacheListenPort = 22133
  textListenPort = 2222
  thriftListenPort = None

  queuePath = "/var/spool/kestrel"

  clientTimeout = None /* never */

  expirationTimerFrequency = 1.second
  maxOpenTransactions = 100
  connectionBacklog = Some(100)
  defaultStatus = Quiescent
  statusFile = "/var/lib/kestrel/status"

  // default queue settings:
  default.defaultJournalSize = 16.megabytes
  default.maxMemorySize = 128.megabytes
  default.maxJournalSize = 1.gigabyte
  default.syncJournal = 10.milliseconds
  default.maxItems = 8 * 1024

  admin.httpPort = 2223
  admin.statsNodes = new StatsConfig {
    reporters = new TimeSeriesCollectorConfig
  }

  queues = new QueueBuilder {
    // keep items for no longer than a half hour, and don't accept any more if
    // the queue reaches 1.5M items.
    name = "weather_updates"
    maxAge = 1800.seconds
    maxItems = 1500000
  } :: new QueueBuilder {
    name = "jobs_pending"
    expireToQueue = "jobs_ready"
    maxAge = 30.seconds
    discardOldWhenFull = true; keepJournal = false
  } :: new QueueBuilder() {
    name = "bad/name"
    fancy = compute(3) { x => x }
  }

  aliases = List(new AliasBuilder {
    name = "wx_updates"
    destinationQueues = List("weather_updates")
  }, new AliasBuilder { name = "a"; destinationQueues = List("x", "y") })

  zookeeper = new ZooKeeperBuilder {
    host = "localhost"
    port = 2181
    pathPrefix = "/kestrel/prod"
    sessionTimeout = 10.seconds
    clientInitializer = Some(MyCode.init _)
  }

  val secret = System.getenv("X")

  loggers = new LoggerConfig {
    level = Level.INFO
    handlers = new FileHandlerConfig {
      filename = "/var/log/kestrel/kestrel.log"
      roll = Policy.Never
    }
  }
}
