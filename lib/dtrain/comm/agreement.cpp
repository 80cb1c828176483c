#include "dtrain/comm/agreement.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "dtrain/base/checksum.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/comm/rendezvous/wire.h"
#include "dtrain/net/message.h"

namespace dtrain::comm {

namespace {

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
    base::fail(base::ErrorKind::comm, "a rank sent settings to compare that make no sense");
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
  own.data_ptr<std::int64_t>()[0] = static_cast<std::int64_t>(bytes.size());
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

}  // namespace

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

}  // namespace dtrain::comm
