#include "dtrain/comm/exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "dtrain/base/error.h"

namespace dtrain::comm {

namespace {

constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;  // of one text

}  // namespace

std::vector<std::string> exchange_texts(ProcessGroup& group, const std::string& text) {
  const auto size = at::empty({1}, at::kLong);
  size.data_ptr<std::int64_t>()[0] = static_cast<std::int64_t>(text.size());
  const auto sizes = at::empty({group.size()}, at::kLong);
  group.all_gather(size, sizes).wait_host();
  const auto* begin = sizes.const_data_ptr<std::int64_t>();
  const auto [least, most] = std::minmax_element(begin, begin + group.size());
  if (*least < 0 || *most > kMostBytes) {
    base::fail(base::ErrorKind::comm, "a rank has a text of {} bytes to tell, which cannot be",
               *least < 0 ? *least : *most);
  }
  const std::int64_t largest = *most;
  std::vector<std::string> texts(static_cast<std::size_t>(group.size()));
  if (largest == 0) return texts;

  const auto own = at::zeros({largest}, at::kByte);
  std::memcpy(own.mutable_data_ptr(), text.data(), text.size());
  const auto all = at::empty({group.size() * largest}, at::kByte);
  group.all_gather(own, all).wait_host();
  for (std::int64_t rank = 0; rank < group.size(); ++rank) {
    const auto* bytes = static_cast<const char*>(all.const_data_ptr()) + rank * largest;
    texts[static_cast<std::size_t>(rank)].assign(bytes, static_cast<std::size_t>(begin[rank]));
  }
  return texts;
}

}  // namespace dtrain::comm
