#include "dtrain/base/host/slurm_step.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

#include "dtrain/base/error.h"
#include "dtrain/base/text/number.h"
#include "dtrain/base/text/text.h"

namespace dtrain::base {
namespace {

constexpr std::size_t kMaxHosts = 65'536;
constexpr std::size_t kMaxNameBytes = 255;
constexpr std::size_t kMaxDigits = 9;

/// Splits off the text before the next comma outside brackets.
std::string_view take_item(std::string_view& list) {
  bool is_within = false;
  std::size_t end = 0;
  for (; end < list.size() && (is_within || list[end] != ','); ++end) {
    if (list[end] == '[') is_within = true;
    if (list[end] == ']') is_within = false;
  }
  const std::string_view item = list.substr(0, end);
  list.remove_prefix(end);
  return item;
}

std::optional<std::uint32_t> digits_in(std::string_view text) {
  if (text.empty() || text.size() > kMaxDigits) return std::nullopt;
  if (text.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  return number_in<std::uint32_t>(text);
}

class Expansion {
 public:
  /// Adds all hosts with prefix `start` that match `pattern`. False: malformed.
  bool add(const std::string& start, std::string_view pattern) {
    const std::size_t open = pattern.find('[');
    const std::string name = start + std::string(pattern.substr(0, open));
    if (name.find(']') != std::string::npos || name.size() > kMaxNameBytes) return false;
    if (open == std::string_view::npos) return add_host(name);
    const std::size_t close = pattern.find(']', open);
    if (close == std::string_view::npos) return false;
    std::string_view ranges = pattern.substr(open + 1, close - open - 1);
    for (;;) {
      const std::string_view range = take_item(ranges);
      if (!add_range(name, range, pattern.substr(close + 1))) return false;
      if (ranges.empty()) return true;
      ranges.remove_prefix(1);
    }
  }

  std::vector<std::string> hosts;

 private:
  bool add_host(const std::string& name) {
    if (name.empty() || hosts.size() == kMaxHosts) return false;
    hosts.push_back(name);
    return true;
  }

  bool add_range(const std::string& start, std::string_view range, std::string_view rest) {
    const std::size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const auto first = digits_in(low);
    const auto last = dash == std::string_view::npos ? first : digits_in(range.substr(dash + 1));
    if (!first || !last || *last < *first) return false;
    for (std::uint32_t number = *first; number <= *last; ++number) {
      if (!add(fmt::format("{}{:0{}}", start, number, low.size()), rest)) return false;
    }
    return true;
  }
};

constexpr std::int64_t kFirstPort = 20'000;
constexpr std::int64_t kNumPlaces = 5'000;
constexpr std::int64_t kStepsBeforeNextJob = 61;

}  // namespace

std::optional<std::vector<std::string>> expand_host_list(std::string_view list) {
  Expansion expansion;
  for (;;) {
    if (!expansion.add("", take_item(list))) return std::nullopt;
    if (list.empty()) return std::move(expansion.hosts);
    list.remove_prefix(1);
  }
}

std::string first_host_of(const SlurmStep& step) {
  if (step.hosts.empty()) {
    fail(ErrorKind::usage,
         "SLURM_STEP_NODELIST is empty, but this step has {} nodes; set MASTER_ADDR to an address "
         "of the first node",
         step.num_nodes);
  }
  const auto hosts = expand_host_list(step.hosts);
  if (!hosts) {
    fail(ErrorKind::usage,
         "SLURM_STEP_NODELIST: found \"{}\", which is not a valid host list such as node[1-4]; set "
         "MASTER_ADDR to an address of the first node",
         printable(step.hosts.substr(0, 200)));
  }
  return hosts->front();
}

std::int64_t port_of(const SlurmStep& step) {
  if (step.master_port != 0) return step.master_port;
  const std::int64_t place = (step.job_id * kStepsBeforeNextJob + step.step_id) % kNumPlaces;
  return kFirstPort + 2 * place;
}

}  // namespace dtrain::base
