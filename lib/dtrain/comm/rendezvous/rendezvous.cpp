#include "dtrain/comm/rendezvous/rendezvous.h"

#include <c10/util/Logging.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "dtrain/base/check.h"
#include "dtrain/base/error.h"
#include "dtrain/comm/rendezvous/socket.h"

namespace dtrain::comm {

namespace {

using base::ErrorKind;
using std::chrono::milliseconds;

// One rank writes here why the job cannot start; all ranks then fail with its words.
constexpr const char* kRefusalKey = "dtrain/refused";

// Under which all ranks of the job meet; part of a message.
constexpr const char* kJobKey = "the job";

// How long rank 0 serves a refusal, so that the others can read it.
constexpr milliseconds kRefusalGrace(500);

std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

/// Runs `action` on the store; its failures, which come with stack traces, become one line.
template <typename Action>
auto with_store(Action&& action) {
  try {
    return action();
  } catch (const base::Error&) {
    throw;
  } catch (const std::exception&) {
    base::fail(ErrorKind::comm,
               "lost the store that rank 0 serves, while waiting for other ranks: rank 0 has "
               "probably ended; what it printed says why");
  }
}

[[noreturn]] void refuse(c10d::Store& store, ErrorKind kind, const std::string& message) {
  store.set(kRefusalKey, fmt::format("{} {}", static_cast<int>(kind), message));
  throw base::Error(kind, message);
}

void fail_if_refused(c10d::Store& store) {
  if (!store.check({kRefusalKey})) return;
  const std::string text = text_of(store.get(kRefusalKey));
  const auto space = text.find(' ');
  throw base::Error(static_cast<ErrorKind>(std::stoi(text.substr(0, space))),
                    text.substr(space + 1));
}

std::string member_key(const std::string& key, std::int64_t rank) {
  return fmt::format("{}/{}", key, rank);
}

std::vector<std::int64_t> absent(c10d::Store& store, const std::string& key,
                                 const std::vector<std::int64_t>& ranks) {
  std::vector<std::int64_t> missing;
  for (const auto rank : ranks) {
    if (!store.check({member_key(key, rank)})) missing.push_back(rank);
  }
  return missing;
}

void wait_for_members(c10d::Store& store, const std::string& key,
                      const std::vector<std::int64_t>& ranks, const Deadline& deadline) {
  std::vector<std::string> keys;
  for (const auto rank : ranks) keys.push_back(member_key(key, rank));
  milliseconds pause(1);
  while (!store.check(keys)) {
    fail_if_refused(store);
    if (deadline.passed()) {
      const auto missing = absent(store, key, ranks);
      refuse(
          store, ErrorKind::timeout,
          fmt::format("rank{} {} did not come to {} of {} ranks within {:.1f} s (--comm-timeout)",
                      missing.size() > 1 ? "s" : "", fmt::join(missing, ", "), key, ranks.size(),
                      base::Seconds(deadline.limit()).count()));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(50));
  }
}

/// c10d's client greets the server without a deadline, so it does that in a thread which is left
/// behind if the server never answers; the process is about to end then.
c10::intrusive_ptr<c10d::Store> connect_within(const Deadline& deadline, const std::string& address,
                                               const c10d::TCPStoreOptions& settings) {
  auto connected = std::make_shared<std::promise<c10::intrusive_ptr<c10d::Store>>>();
  auto result = connected->get_future();
  std::thread([connected, address, settings] {
    try {
      connected->set_value(c10::make_intrusive<c10d::TCPStore>(address, settings));
    } catch (...) {
      connected->set_exception(std::current_exception());
    }
  }).detach();
  if (result.wait_for(deadline.remaining()) != std::future_status::ready) {
    base::fail(ErrorKind::timeout, "no answer");
  }
  return result.get();
}

c10::intrusive_ptr<c10d::Store> open_store(const WorldOptions& options, const Deadline& deadline) {
  c10d::TCPStoreOptions settings;
  settings.waitWorkers = false;
  settings.timeout = deadline.remaining();
  settings.port = base::narrow<std::uint16_t>(options.master_port);
  if (options.rank == 0) {
    settings.isServer = true;
    // Always on a socket of our own: without one the store would listen at all interfaces.
    settings.masterListenFd = options.store_fd >= 0
                                  ? options.store_fd
                                  : listen_at(options.master_addr, options.master_port);
    settings.port = base::narrow<std::uint16_t>(port_of(*settings.masterListenFd));
  }
  try {
    return connect_within(deadline, options.master_addr, settings);
  } catch (const std::exception&) {
    base::fail(ErrorKind::timeout,
               "the store at {}:{} does not answer as a store within {:.1f} s; "
               "another program may hold that port: choose another MASTER_PORT",
               options.master_addr, options.master_port, base::Seconds(deadline.limit()).count());
  }
}

/// Refuses ranks that were told different world sizes, and two processes with one rank.
void register_rank(c10d::Store& store, const WorldOptions& options) {
  const std::string own = fmt::format("{} {}", options.size, options.rank);
  const std::string first =
      text_of(store.compareSet("dtrain/world_size", bytes_of(""), bytes_of(own)));
  const auto space = first.find(' ');
  if (first.substr(0, space) != std::to_string(options.size)) {
    refuse(
        store, ErrorKind::usage,
        fmt::format("rank {} was started with a world size of {}, rank {} with {}; give every "
                    "rank the same WORLD_SIZE",
                    options.rank, options.size, first.substr(space + 1), first.substr(0, space)));
  }
  if (store.add(member_key(kJobKey, options.rank), 1) > 1) {
    refuse(store, ErrorKind::usage,
           fmt::format("two processes were started as rank {} of {}; give each its own RANK",
                       options.rank, options.size));
  }
}

}  // namespace

Rendezvous meet_all_ranks(const WorldOptions& options, const Deadline& deadline) {
  // c10d writes warnings with stack traces to standard error for what we report in one line.
  // Once: the flag is LibTorch's, shared by all threads.
  [[maybe_unused]] static const int level = FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  Rendezvous result;
  if (options.rank == 0) result.store = open_store(options, deadline);
  result.own_address = reach(options.master_addr, options.master_port, deadline);
  if (options.rank != 0) result.store = open_store(options, deadline);
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = 0; rank < options.size; ++rank) ranks.push_back(rank);
  try {
    with_store([&] {
      register_rank(*result.store, options);
      wait_for_members(*result.store, kJobKey, ranks, deadline);
    });
  } catch (...) {
    if (options.rank == 0) std::this_thread::sleep_for(kRefusalGrace);
    throw;
  }
  return result;
}

std::vector<std::string> exchange_notes(c10d::Store& store, const std::string& key,
                                        std::int64_t own_rank,
                                        const std::vector<std::int64_t>& world_ranks,
                                        const std::string& own_note, const Deadline& deadline) {
  return with_store([&] {
    store.set(member_key(key, own_rank), own_note);
    wait_for_members(store, key, world_ranks, deadline);
    std::vector<std::string> notes;
    for (const auto rank : world_ranks) notes.push_back(text_of(store.get(member_key(key, rank))));
    return notes;
  });
}

void meet_members(c10d::Store& store, const std::string& key, std::int64_t own_rank,
                  const std::vector<std::int64_t>& world_ranks, const Deadline& deadline) {
  with_store([&] {
    store.set(member_key(key, own_rank), "here");
    wait_for_members(store, key, world_ranks, deadline);
  });
}

void fail_together(std::int64_t own_rank, const base::Error& error) {
  if (own_rank == 0) std::this_thread::sleep_for(kRefusalGrace);
  throw error;
}

}  // namespace dtrain::comm
