#include "dtrain/comm/clock_offset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dtrain/comm/exchange.h"

namespace dtrain::comm {
namespace {

constexpr int kRounds = 10;  // the first ones open connections

std::int64_t ticks(const ReadClock& now) {
  return static_cast<std::int64_t>(now().time_since_epoch().count());
}

// Answers every question with the time.
void answer(ProcessGroup& group, std::int64_t peer, const ReadClock& now) {
  const auto value = at::zeros({1}, at::kLong);
  for (int round = 0; round < kRounds; ++round) {
    group.recv(value, peer).wait_host();
    value.fill_(ticks(now));
    group.send(value, peer).wait_host();
  }
}

// Asks rank 0, whose answer came half a round trip ago.
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

base::Clock::duration clock_offset(ProcessGroup& group, const std::string& host,
                                   const ReadClock& now) {
  const std::vector<std::string> hosts = exchange_texts(group, host);
  // The first rank of each host asks for all of it, one after the other, so that none waits for
  // another's answer.
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
