#include "dtrain/comm/exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "dtrain/base/error.h"

namespace dtrain::comm {

namespace {

constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;  // of one text

/// The bytes of every rank's text, by rank.
std::vector<std::int64_t> exchange_sizes(ProcessGroup& group, const std::string& text) {
  const auto size = at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong);
  const auto sizes = at::empty({group.size()}, at::kLong);
  group.all_gather(size, sizes).wait_host();
  const auto* begin = sizes.const_data_ptr<std::int64_t>();
  const auto [least, most] = std::minmax_element(begin, begin + group.size());
  if (*least < 0 || *most > kMostBytes) {
    base::fail(base::ErrorKind::comm, "a rank has a text of {} bytes to tell, which cannot be",
               *least < 0 ? *least : *most);
  }
  return {begin, begin + group.size()};
}

at::Tensor tensor_of(const std::string& text) {
  const auto tensor = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
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
  sent.front() = static_cast<std::int64_t>(text.size());
  const std::vector<std::int64_t> received =
      group.rank() == 0 ? sizes : std::vector<std::int64_t>(sizes.size());
  const std::int64_t bytes = std::accumulate(received.begin(), received.end(), std::int64_t{0});
  const auto all = at::empty({bytes}, at::kByte);
  group.all_to_all(tensor_of(text), sent, all, received).wait_host();
  return group.rank() == 0 ? cut(all, sizes) : std::vector<std::string>();
}

}  // namespace dtrain::comm
