#include "dtrain/comm/exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>

#include "dtrain/base/checksum.h"
#include "dtrain/base/error.h"
#include "dtrain/base/host/threads.h"
#include "dtrain/base/log.h"
#include "dtrain/base/text/text.h"
#include "dtrain/net/message.h"

namespace dtrain::comm {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{64} << 20;  // of one text

/// All-gathers the sizes of the strings, in bytes.
std::vector<std::int64_t> exchange_sizes(ProcessGroup& group, const std::string& text) {
  const auto size = at::full({1}, std::ssize(text), at::kLong);
  const auto sizes = at::empty({group.size()}, at::kLong);
  group.all_gather(size, sizes).wait_host();
  const auto* begin = sizes.const_data_ptr<std::int64_t>();
  const auto [least, most] = std::minmax_element(begin, begin + group.size());
  if (*least < 0 || *most > kMaxBytes) {
    base::fail(base::ErrorKind::comm, "a rank announced a string of {} bytes; the limit is {}",
               *least < 0 ? *least : *most, kMaxBytes);
  }
  return {begin, begin + group.size()};
}

at::Tensor tensor_of(const std::string& text) {
  const auto tensor = at::empty({std::ssize(text)}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), text.data(), text.size());
  return tensor;
}

std::vector<std::string> cut(const at::Tensor& all, const std::vector<std::int64_t>& sizes) {
  std::vector<std::string> texts;
  const auto* bytes = static_cast<const char*>(all.const_data_ptr());
  for (const std::int64_t size : sizes) {
    texts.emplace_back(bytes, static_cast<std::size_t>(size));
    bytes += size;
  }
  return texts;
}

std::string packed(const std::vector<NamedValue>& values) {
  net::MessageWriter message;
  for (const auto& [name, value] : values) message.text(name).text(value);
  return message.bytes();
}

std::vector<NamedValue> unpacked(std::string_view bytes) {
  std::vector<NamedValue> values;
  net::MessageReader message(bytes);
  const auto take = [&] {
    const std::string text = message.text();
    return base::printable(text, text.size());
  };
  while (!message.is_whole()) {
    std::string name = take();
    values.emplace_back(std::move(name), take());
    if (message.is_good()) continue;
    base::fail(base::ErrorKind::comm, "a rank sent malformed settings to compare");
  }
  return values;
}

struct Difference {
  std::size_t entry = 0;
  std::size_t rank = 0;  // it differs from rank 0
};

std::optional<Difference> first_difference(const std::vector<std::vector<NamedValue>>& lists) {
  std::optional<Difference> first;
  for (std::size_t rank = 1; rank < lists.size(); ++rank) {
    const auto [a, b] =
        std::mismatch(lists[0].begin(), lists[0].end(), lists[rank].begin(), lists[rank].end());
    const bool differs = a != lists[0].end() || b != lists[rank].end();
    const auto entry = static_cast<std::size_t>(a - lists[0].begin());
    if (differs && (!first || entry < first->entry)) first = Difference{entry, rank};
  }
  return first;
}

std::string shown(const std::vector<NamedValue>& values, std::size_t entry,
                  const std::string& name) {
  if (entry >= values.size()) return "nothing";
  const auto& [own_name, value] = values[entry];
  return own_name == name ? value : fmt::format("{} = {}", own_name, value);
}

bool all_have(ProcessGroup& group, const std::string& bytes) {
  const auto own = at::empty({2}, at::kLong);
  own.data_ptr<std::int64_t>()[0] = std::ssize(bytes);
  own.data_ptr<std::int64_t>()[1] = static_cast<std::int64_t>(base::hash_text(bytes));
  const auto all = at::empty({group.size() * 2}, at::kLong);
  group.all_gather(own, all).wait_host();
  const auto digests = all.data_ptr<std::int64_t>();
  bool equal = true;
  for (std::int64_t rank = 0; rank < group.size(); ++rank) {
    equal = equal && digests[2 * rank] == digests[0] && digests[2 * rank + 1] == digests[1];
  }
  return equal;
}

constexpr std::chrono::milliseconds kPoll(500);
constexpr std::chrono::seconds kSlow(60);

constexpr int kRounds = 10;  // the first ones open connections

std::int64_t ticks(const ReadClock& now) {
  return static_cast<std::int64_t>(now().time_since_epoch().count());
}

// Answers clock queries of `peer`.
void answer(ProcessGroup& group, std::int64_t peer, const ReadClock& now) {
  const auto value = at::zeros({1}, at::kLong);
  for (int round = 0; round < kRounds; ++round) {
    group.recv(value, peer).wait_host();
    value.fill_(ticks(now));
    group.send(value, peer).wait_host();
  }
}

// Queries rank 0's clock, assuming that each answer took half of the round trip.
std::int64_t ask(ProcessGroup& group, const ReadClock& now) {
  const auto value = at::zeros({1}, at::kLong);
  std::int64_t shortest = 0;
  std::int64_t ahead = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t asked = ticks(now);
    group.send(value, 0).wait_host();
    group.recv(value, 0).wait_host();
    const std::int64_t answered = ticks(now);
    if (round > 0 && answered - asked >= shortest) continue;
    shortest = answered - asked;
    ahead = asked + shortest / 2 - value.item<std::int64_t>();
  }
  return ahead;
}

}  // namespace

std::vector<std::string> exchange_texts(ProcessGroup& group, const std::string& text) {
  const auto sizes = exchange_sizes(group, text);
  const std::int64_t bytes = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  if (bytes == 0) return std::vector<std::string>(sizes.size());
  const auto all = at::empty({bytes}, at::kByte);
  group.all_gather_v(tensor_of(text), all, sizes).wait_host();
  return cut(all, sizes);
}

std::vector<std::string> gather_texts(ProcessGroup& group, const std::string& text) {
  const auto sizes = exchange_sizes(group, text);
  std::vector<std::int64_t> sent(sizes.size());
  sent.front() = std::ssize(text);
  const std::vector<std::int64_t> received =
      group.rank() == 0 ? sizes : std::vector<std::int64_t>(sizes.size());
  const std::int64_t bytes = std::accumulate(received.begin(), received.end(), std::int64_t{0});
  const auto all = at::empty({bytes}, at::kByte);
  group.all_to_all(tensor_of(text), sent, all, received).wait_host();
  return group.rank() == 0 ? cut(all, sizes) : std::vector<std::string>();
}

void check_agreement(ProcessGroup& group, const std::vector<NamedValue>& values) {
  const std::string bytes = packed(values);
  if (all_have(group, bytes)) return;
  std::vector<std::vector<NamedValue>> lists;
  for (const auto& text : exchange_texts(group, bytes)) lists.push_back(unpacked(text));
  const auto difference = first_difference(lists);
  if (!difference) return;
  const auto& [entry, rank] = *difference;
  const std::string name =
      entry < lists[0].size() ? lists[0][entry].first : lists[rank][entry].first;
  base::fail(base::ErrorKind::usage,
             "ranks 0 and {} do not agree on {}: {} on rank 0, {} on rank {}; start every rank "
             "with the same program and settings",
             rank, name, shown(lists[0], entry, name), shown(lists[rank], entry, name), rank);
}

void run_long(ProcessGroup& group, std::string_view what, const std::function<void()>& task) {
  std::exception_ptr failure;
  std::future<void> running;
  if (task) {
    running = base::start_task([&] {
      try {
        task();
      } catch (...) {
        failure = std::current_exception();
      }
    });
  }
  base::ReportTimer slow(kSlow);
  bool is_busy = true;
  bool has_failed = false;
  while (is_busy) {
    const bool is_done = !task || running.wait_for(kPoll) == std::future_status::ready;
    if (!is_done && slow.is_due()) {
      base::log_warning("rank {} has been {} for {}", group.rank(), what,
                        base::readable_time(slow.waited()));
    }
    const at::Tensor state = at::zeros({2}, at::kDouble);  // ranks at work, ranks that failed
    state.data_ptr<double>()[0] = is_done ? 0 : 1;
    state.data_ptr<double>()[1] = is_done && failure ? 1 : 0;
    group.all_reduce(state).wait_host();
    is_busy = state.data_ptr<double>()[0] > 0;
    has_failed = state.data_ptr<double>()[1] > 0;
  }
  if (failure) std::rethrow_exception(failure);
  if (has_failed) {
    base::fail(base::ErrorKind::comm, "another rank failed at {}; see its own error message", what);
  }
}

void run_long_on_leader(ProcessGroup& group, std::string_view what,
                        const std::function<void()>& task) {
  run_long(group, what, group.rank() == 0 ? task : nullptr);
}

std::string leader_text(ProcessGroup& group, std::string_view what,
                        const std::function<std::string()>& text) {
  std::string own;
  run_long_on_leader(group, what, [&] { own = text(); });
  return exchange_texts(group, own).front();
}

base::Clock::duration clock_offset(ProcessGroup& group, const std::string& host,
                                   const ReadClock& now) {
  const std::vector<std::string> hosts = exchange_texts(group, host);
  // The first rank of each host measures for the whole host, one host at a time, so that no query
  // waits behind another's.
  std::int64_t own = 0;
  for (std::int64_t rank = 0; rank < group.size(); ++rank) {
    const auto& name = hosts[static_cast<std::size_t>(rank)];
    const auto first = std::find(hosts.begin(), hosts.end(), name) - hosts.begin();
    if (name == hosts.front() || first != rank) continue;
    if (group.rank() == 0) answer(group, rank, now);
    if (group.rank() == rank) own = ask(group, now);
  }
  const std::vector<std::string> offsets = exchange_texts(group, std::to_string(own));
  const auto first = std::find(hosts.begin(), hosts.end(), host) - hosts.begin();
  return base::Clock::duration(std::stoll(offsets[static_cast<std::size_t>(first)]));
}

}  // namespace dtrain::comm
