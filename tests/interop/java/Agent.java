// SPDX-License-Identifier: MIT
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URL;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.jar.Manifest;
import org.redisson.Redisson;
import org.redisson.RedissonRedLock;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RBucket;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RFuture;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.ReadMode;
import org.redisson.config.ShardedSubscriptionMode;

/**
 * Runs an unchanged Redisson by requests, one on each line. agent.cpp is its twin for redlatch.
 *
 * <p>A request is a line "number thread operation kind name key=value...". Its answer is a line "number text", sent
 * when the operation is over. Each thread named in a request is a real thread with a queue of its own, so owners differ
 * and a blocking call delays only its own thread. An answer that begins with "!" is an error. Arguments: wait and lease
 * in ms (absent: indefinitely, with the watchdog), wd (the watchdog's time-out, 30 s), n (permits, counts), id. The
 * kinds that end with "_async" are the locks by their asynchronous operations, without a thread that waits or owns.
 *
 * <p>To add a primitive, add an entry to KINDS, and a function for its operations if it is no lock.
 */
public final class Agent {
    interface Action {
        void run() throws Exception;
    }

    interface Kind {
        Object answer(Request request) throws Exception;
    }

    private static final Map<String, Kind> KINDS = new TreeMap<>();

    static {
        KINDS.put("rlock", r -> lock(r, r.shared(c -> c.getLock(r.name))));
        KINDS.put("fair", r -> lock(r, r.shared(c -> c.getFairLock(r.name))));
        KINDS.put("strict", r -> lock(r, r.shared(c -> c.getNonReentrantLock(r.name))));
        KINDS.put("strict_fair", r -> lock(r, r.shared(c -> c.getNonReentrantFairLock(r.name))));
        KINDS.put("read", r -> lock(r, r.shared(c -> c.getReadWriteLock(r.name).readLock())));
        KINDS.put("write", r -> lock(r, r.shared(c -> c.getReadWriteLock(r.name).writeLock())));
        KINDS.put("fenced", r -> fenced(r, r.shared(c -> c.getFencedLock(r.name))));
        KINDS.put("spin", r -> lock(r, r.shared(c -> c.getSpinLock(r.name))));
        KINDS.put("rlock_async", r -> asyncLock(r, r.shared(c -> c.getLock(r.name))));
        KINDS.put("fair_async", r -> asyncLock(r, r.shared(c -> c.getFairLock(r.name))));
        KINDS.put("read_async", r -> asyncLock(r, r.shared(c -> c.getReadWriteLock(r.name).readLock())));
        KINDS.put("write_async", r -> asyncLock(r, r.shared(c -> c.getReadWriteLock(r.name).writeLock())));
        KINDS.put("fenced_async", r -> asyncLock(r, r.shared(c -> c.getFencedLock(r.name))));
        KINDS.put("semaphore", r -> semaphore(r, r.shared(c -> c.getSemaphore(r.name))));
        KINDS.put("permits", r -> permits(r, r.shared(c -> c.getPermitExpirableSemaphore(r.name))));
        KINDS.put("latch", r -> latch(r, r.shared(c -> c.getCountDownLatch(r.name))));
        KINDS.put("multi", r -> lock(r, r.shared(c -> c.getMultiLock(members(r, c, c, c)))));
        KINDS.put("red", r -> lock(r, r.shared(c -> redLock(r))));
    }

    // --- the operations of each kind ---------------------------------------------------------------------------------

    private static Object lock(Request r, RLock lock) throws Exception {
        switch (r.operation) {
            case "lock":
                if (r.has("lease")) lock.lock(r.number("lease"), TimeUnit.MILLISECONDS);
                else lock.lock();
                return "ok";
            case "try":
                if (r.has("lease")) return lock.tryLock(r.number("wait", 0), r.number("lease"), TimeUnit.MILLISECONDS);
                if (r.has("wait")) return lock.tryLock(r.number("wait"), TimeUnit.MILLISECONDS);
                return lock.tryLock();
            case "unlock":
                lock.unlock();
                return "ok";
            case "force": return lock.forceUnlock();
            case "locked": return lock.isLocked();
            case "held": return lock.isHeldByCurrentThread();
            case "count": return lock.getHoldCount();
            case "ttl": return lock.remainTimeToLive();
            case "stress": return stress(r, lock::lock, lock::unlock);
            case "look": return look(r, lock::lock, lock::unlock);
            default: return r.unknown();
        }
    }

    /** The operations that return a future, for an owner that is no thread: the thread id is a number of ours. */
    private static Object asyncLock(Request r, RLock lock) throws Exception {
        final long owner = r.owner();
        switch (r.operation) {
            case "lock":
                if (r.has("lease")) result(lock.lockAsync(r.number("lease"), TimeUnit.MILLISECONDS, owner));
                else result(lock.lockAsync(owner));
                return "ok";
            case "try":
                if (!r.has("wait") && !r.has("lease")) return result(lock.tryLockAsync(owner));
                return result(lock.tryLockAsync(
                        r.number("wait", 0), r.number("lease", -1), TimeUnit.MILLISECONDS, owner));
            case "unlock":
            case "unlock_async":
                result(lock.unlockAsync(owner));
                return "ok";
            case "force": return result(lock.forceUnlockAsync());
            case "locked": return result(lock.isLockedAsync());
            case "held": return result(lock.isHeldByThreadAsync(owner));
            case "ttl": return result(lock.remainTimeToLiveAsync());
            default: return r.unknown();
        }
    }

    private static <T> T result(RFuture<T> future) throws Exception {
        try {
            return future.toCompletableFuture().get();
        } catch (ExecutionException error) {
            if (error.getCause() instanceof Exception) throw (Exception) error.getCause();
            throw error;
        }
    }

    private static Object fenced(Request r, RFencedLock lock) throws Exception {
        switch (r.operation) {
            case "token": return lock.getToken();
            case "lock_token": return lock.lockAndGetToken();
            default: return lock(r, lock);
        }
    }

    private static Object semaphore(Request r, RSemaphore semaphore) throws Exception {
        final int n = (int) r.number("n", 1);
        switch (r.operation) {
            case "set": return semaphore.trySetPermits(n);
            case "add":
                semaphore.addPermits(n);
                return "ok";
            case "drain": return semaphore.drainPermits();
            case "available": return semaphore.availablePermits();
            case "lock":
                semaphore.acquire(n);
                return "ok";
            case "try":
                if (r.has("wait")) return semaphore.tryAcquire(n, r.millis("wait"));
                return semaphore.tryAcquire(n);
            case "unlock":
                semaphore.release(n);
                return "ok";
            case "unlock_if_exists": return semaphore.releaseIfExists(n);
            case "stress": return stress(r, semaphore::acquire, semaphore::release);
            default: return r.unknown();
        }
    }

    private static Object permits(Request r, RPermitExpirableSemaphore semaphore) throws Exception {
        final int n = (int) r.number("n", 1);
        switch (r.operation) {
            case "set": return semaphore.trySetPermits(n);
            case "change":
                semaphore.setPermits(n);
                return "ok";
            case "add":
                semaphore.addPermits(n);
                return "ok";
            case "available": return semaphore.availablePermits();
            case "acquired": return semaphore.acquiredPermits();
            case "permits": return semaphore.getPermits();
            case "lock":
                if (r.has("lease")) return semaphore.acquire(r.number("lease"), TimeUnit.MILLISECONDS);
                return semaphore.acquire();
            case "try":
                if (!r.has("wait") && !r.has("lease")) return semaphore.tryAcquire();
                return semaphore.tryAcquire(r.number("wait", 0), r.number("lease", -1), TimeUnit.MILLISECONDS);
            case "lock_many": return String.join(",", semaphore.acquire(n));
            case "unlock":
                semaphore.release(r.arguments.get("id"));
                return "ok";
            case "unlock_many":
                semaphore.release(Arrays.asList(r.arguments.get("id").split(",")));
                return "ok";
            case "try_unlock": return semaphore.tryRelease(r.arguments.get("id"));
            case "prolong":
                return semaphore.updateLeaseTime(r.arguments.get("id"), r.number("lease"), TimeUnit.MILLISECONDS);
            case "left": return semaphore.getLeaseTime(r.arguments.get("id"));
            case "stress": {
                final String[] id = new String[1];
                return stress(r, () -> id[0] = semaphore.acquire(), () -> semaphore.release(id[0]));
            }
            default: return r.unknown();
        }
    }

    private static Object latch(Request r, RCountDownLatch latch) throws Exception {
        switch (r.operation) {
            case "set": return latch.trySetCount(r.number("n"));
            case "count": return latch.getCount();
            case "down":
                latch.countDown();
                return "ok";
            case "lock":
                latch.await();
                return "ok";
            case "try": return latch.await(r.number("wait", 0), TimeUnit.MILLISECONDS);
            case "reset": return latch.delete();
            default: return r.unknown();
        }
    }

    private static RLock[] members(Request r, RedissonClient... clients) {
        final RLock[] members = new RLock[clients.length];
        for (int i = 0; i < members.length; ++i) members[i] = clients[i].getLock(r.name + "." + (i + 1));
        return members;
    }

    @SuppressWarnings("deprecation")
    private static RLock redLock(Request r) {
        return new RedissonRedLock(members(r, r.client(0), r.client(1), r.client(2)));
    }

    // --- sections that come out right only under mutual exclusion ----------------------------------------------------

    /** Sleeps up to 2 ms between two sections, so that all threads get a turn; see agent.cpp. */
    private static void rest() throws Exception {
        TimeUnit.MICROSECONDS.sleep(ThreadLocalRandom.current().nextInt(2001));
    }

    /**
     * Adds one to a plain counter by a GET and a SET, again and again. Returns how often, and the longest wait in ms after
     * the first 5 s, in which Java compiles its code. Adds the same to the counter `own` of this thread, so that it is known
     * how often a killed one has done so.
     */
    private static Object stress(Request r, Action enter, Action leave) throws Exception {
        final RBucket<String> counter = r.client(0).getBucket(r.arguments.get("counter"), StringCodec.INSTANCE);
        final RAtomicLong own = r.client(0).getAtomicLong(r.arguments.get("own"));
        final long begun = System.nanoTime();
        final long compiled = begun + TimeUnit.SECONDS.toNanos(5);
        final long end = begun + TimeUnit.MILLISECONDS.toNanos(r.number("ms"));
        long sections = 0;
        long longest = 0;
        while (System.nanoTime() < end) {
            final long asked = System.nanoTime();
            if (asked < compiled) longest = 0;
            enter.run();
            longest = Math.max(longest, System.nanoTime() - asked);
            final String before = counter.get();
            Thread.yield();
            counter.set(Long.toString((before == null ? 0 : Long.parseLong(before)) + 1));
            own.incrementAndGet();
            leave.run();
            ++sections;
            rest();
        }
        return sections + " " + TimeUnit.NANOSECONDS.toMillis(longest);
    }

    /** Reads the counter twice, again and again. Returns how often, or an error if it changed in between. */
    private static Object look(Request r, Action enter, Action leave) throws Exception {
        final RBucket<String> counter = r.client(0).getBucket(r.arguments.get("counter"), StringCodec.INSTANCE);
        final long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(r.number("ms"));
        long sections = 0;
        boolean stable = true;
        while (System.nanoTime() < end) {
            enter.run();
            final String before = counter.get();
            Thread.yield();
            stable &= String.valueOf(before).equals(String.valueOf(counter.get()));
            leave.run();
            ++sections;
            rest();
        }
        return stable ? sections : "!a reader saw a write";
    }

    // --- execution ---------------------------------------------------------------------------------------------------

    private static final Map<String, ExecutorService> THREADS = new HashMap<>();
    private static final Map<String, RedissonClient> CLIENTS = new ConcurrentHashMap<>();
    private static final Map<String, Object> SHARED = new ConcurrentHashMap<>();
    private static String[] urls;

    private static final class Request {
        final String id;
        final String thread;
        final String operation;
        final String kind;
        final String name;
        final Map<String, String> arguments = new HashMap<>();

        Request(String line) {
            final String[] words = line.split(" ");
            id = words[0];
            thread = words[1];
            operation = words[2];
            kind = words[3];
            name = words[4];
            for (int i = 5; i < words.length; ++i) {
                final int equals = words[i].indexOf('=');
                arguments.put(words[i].substring(0, equals), words[i].substring(equals + 1));
            }
        }

        boolean has(String key) {
            return arguments.containsKey(key);
        }

        long number(String key) {
            return Long.parseLong(arguments.get(key));
        }

        long number(String key, long otherwise) {
            return has(key) ? number(key) : otherwise;
        }

        Duration millis(String key) {
            return Duration.ofMillis(number(key));
        }

        RedissonClient client(int server) {
            final long watchdog = number("wd", 30_000);
            return CLIENTS.computeIfAbsent(server + " " + watchdog, key -> {
                final Config config = new Config();
                config.setLockWatchdogTimeout(watchdog);
                config.setThreads(8).setNettyThreads(4);
                if (urls[server].startsWith("redis-cluster://")) return Redisson.create(onCluster(config, urls[server]));
                config.useSingleServer()
                        .setAddress(urls[server])
                        .setConnectionPoolSize(24)
                        .setConnectionMinimumIdleSize(4)
                        .setSubscriptionConnectionMinimumIdleSize(1);
                return Redisson.create(config);
            });
        }

        /** Takes redis-cluster://host:port,host:port?pubsub=sharded or classic. All commands go to the masters. */
        private static Config onCluster(Config config, String url) {
            final String[] parts = url.substring("redis-cluster://".length()).split("[?]pubsub=");
            final ClusterServersConfig cluster = config.useClusterServers()
                    .setShardedSubscriptionMode(
                            parts[1].equals("sharded") ? ShardedSubscriptionMode.ON : ShardedSubscriptionMode.OFF)
                    .setReadMode(ReadMode.MASTER)
                    .setMasterConnectionPoolSize(24)
                    .setMasterConnectionMinimumIdleSize(2)
                    .setSlaveConnectionMinimumIdleSize(1)
                    .setSubscriptionConnectionMinimumIdleSize(1);
            for (String node : parts[0].split(",")) cluster.addNodeAddress("redis://" + node);
            return config;
        }

        /** One object for each name, as a service would use it: Redisson keeps a lock's default lease in its object. */
        @SuppressWarnings("unchecked")
        <T> T shared(Function<RedissonClient, T> make) {
            final String key = kind + " " + name + " " + arguments.get("wd");
            final Object known = SHARED.get(key);
            if (known != null) return (T) known;
            final T made = make.apply(client(0));
            final Object first = SHARED.putIfAbsent(key, made);
            return first == null ? made : (T) first;
        }

        /** The owner's number on the wire. */
        long owner() {
            final long thread = Thread.currentThread().getId();
            return kind.endsWith("_async") ? 1_000_000 + thread : thread;
        }

        Object unknown() {
            return "!" + kind + " has no operation " + operation;
        }
    }

    private static Object answer(Request r) {
        try {
            switch (r.operation) {
                case "hello": return "Redisson " + version();
                case "kinds": return String.join(",", KINDS.keySet());
                case "id": return r.client(0).getId() + ":" + r.owner();
                default: break;
            }
            final Kind kind = KINDS.get(r.kind);
            return kind == null ? "!there is no kind " + r.kind : kind.answer(r);
        } catch (IllegalMonitorStateException error) {
            return "!not_owner";
        } catch (Throwable error) {
            error.printStackTrace();
            return "!" + String.valueOf(error).replace('\n', ' ');
        }
    }

    private static String version() throws Exception {
        for (URL url : Collections.list(Agent.class.getClassLoader().getResources("META-INF/MANIFEST.MF"))) {
            if (!url.getPath().matches(".*/redisson-[^/]*[.]jar!.*")) continue;
            try (var stream = url.openStream()) {
                return new Manifest(stream).getMainAttributes().getValue("Bundle-Version");
            }
        }
        return "of an unknown version";
    }

    private static void say(Request request, Object answer) {
        synchronized (System.out) {
            System.out.println(request.id + " " + (answer == null ? "nil" : answer));
            System.out.flush();
        }
    }

    public static void main(String[] arguments) throws Exception {
        urls = arguments;
        final BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            final Request request = new Request(line);
            THREADS.computeIfAbsent(request.thread, name -> Executors.newSingleThreadExecutor())
                    .execute(() -> say(request, answer(request)));
        }
        Runtime.getRuntime().halt(0); // the other end is gone; blocked threads do not matter
    }
}
