#include "dtrain/parallel/compress/internal/top_k.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

namespace dtrain::parallel {
namespace {

constexpr std::int64_t kLargestGap = 65535;
constexpr std::int64_t kEntryBytes = 4;  // a gap and a value
// Oversampling factor that makes finding too few candidates rare.
constexpr double kMargin = 1.25;

// Number of values sent.
std::int64_t num_sent(std::int64_t size, double ratio) {
  return std::max<std::int64_t>(1, std::llround(ratio * static_cast<double>(size)));
}

// Number of entries: the values sent, and those that bridge the widest gaps.
std::int64_t num_entries(std::int64_t size, double ratio) {
  return num_sent(size, ratio) + size / kLargestGap;
}

// Returns (about kMargin * count) int64: indices likely to be among the `count` largest magnitudes.
at::Tensor candidate_indices(const at::Tensor& sizes, std::int64_t count) {
  // An odd step samples all columns of a matrix whose width is a power of two.
  const std::int64_t step = (sizes.numel() / TopK::kExact) | 1;
  const at::Tensor sample = sizes.slice(0, 0, sizes.numel(), step);
  const double share = static_cast<double>(sample.numel()) / static_cast<double>(sizes.numel());
  const auto wanted =
      static_cast<std::int64_t>(std::ceil(kMargin * share * static_cast<double>(count))) + 1;
  const at::Tensor least =
      std::get<0>(sample.topk(std::min(wanted, sample.numel()), 0, true, /*sorted=*/true))[-1];
  // NaN counts as large, since it must reach the sum; zeros need not be sent.
  return sizes.lt(least).logical_not_().logical_and_(sizes.ne(0)).nonzero().view(-1);
}

// Returns (at most count) int64: the ascending indices of the largest magnitudes.
at::Tensor largest(const at::Tensor& values, std::int64_t count) {
  const at::Tensor sizes = values.abs();
  at::Tensor found;
  if (sizes.numel() > TopK::kExact) {
    found = candidate_indices(sizes, count);
    if (found.numel() <= count) return found;
    found = found.index_select(
        0, std::get<1>(sizes.index_select(0, found).topk(count, 0, true, /*sorted=*/false)));
  } else {
    found = std::get<1>(sizes.topk(count, 0, true, /*sorted=*/false));
  }
  return std::get<0>(found.sort());
}

struct Entries {
  at::Tensor gaps;    // (c) int16, holding uint16 bits
  at::Tensor values;  // (c) bfloat16
};

Entries entries_of(const at::Tensor& message) {
  const std::int64_t half = message.numel() / 2;
  return {.gaps = message.narrow(0, 0, half).view(at::kShort),
          .values = message.narrow(0, half, half).view(at::kBFloat16)};
}

}  // namespace

TopK::TopK(std::int64_t size, double ratio, comm::ProcessGroup& group,
           const param::ArenaAllocator& allocate)
    : ratio_(ratio),
      group_(group),
      messages_(allocate(group.size() * message_bytes(size, ratio)).view({group.size(), -1})) {}

std::int64_t TopK::message_bytes(std::int64_t size, double ratio) {
  return num_entries(size, ratio) * kEntryBytes;
}

SchemeCosts TopK::costs(std::int64_t size, double ratio, std::int64_t num_ranks,
                        at::ScalarType dtype) {
  const std::int64_t message = message_bytes(size, ratio);
  constexpr std::int64_t kMasks = 2;      // one byte per element each
  constexpr std::int64_t kChoosing = 40;  // bytes per entry: candidates, magnitudes, positions
  constexpr std::int64_t kPacking = 62;   // bytes per entry: positions, gaps, bridges, values
  const std::int64_t entries = num_entries(size, ratio);
  const std::int64_t choosing =
      size * (static_cast<std::int64_t>(c10::elementSize(dtype)) + kMasks) + kChoosing * entries;
  return {.buffers = num_ranks * message,
          .work = std::max(choosing, kPacking * entries),
          .sent = (num_ranks - 1) * message,
          .calls = 1};
}

void TopK::begin(const at::Tensor& values) {
  const at::Tensor own = messages_[group_.rank()];
  compress(values, ratio_, own);
  work_ = group_.all_gather(own, messages_.view(-1));
}

void TopK::finish(const at::Tensor& sum) {
  work_.wait();
  sum.zero_();
  for (std::int64_t rank = 0; rank < group_.size(); ++rank) decompress(messages_[rank], sum);
}

void TopK::compress(const at::Tensor& values, double ratio, const at::Tensor& message) {
  const Entries entries = entries_of(message);
  message.zero_();
  const at::Tensor indices = largest(values, num_sent(values.numel(), ratio));
  if (indices.numel() == 0) return;
  const at::Tensor sent = values.index_select(0, indices).to(at::kBFloat16);
  values.index_add_(0, indices, sent.to(values.scalar_type()), -1);
  const at::Tensor gaps = indices.diff(1, 0, at::zeros({1}, indices.options()));
  const at::Tensor bridges =
      gaps.sub(1).div_(kLargestGap, "trunc");  // preceding entries of value 0
  const at::Tensor positions = bridges.add(1).cumsum(0).sub_(1);
  const std::int64_t count = positions[-1].item<std::int64_t>() + 1;
  at::Tensor all = at::full({count}, kLargestGap, indices.options());
  all.index_copy_(0, positions, gaps.sub(bridges, kLargestGap));
  entries.gaps.narrow(0, 0, count).copy_(all);  // modulo 2^16
  entries.values.index_copy_(0, positions, sent);
}

void TopK::decompress(const at::Tensor& message, const at::Tensor& sum) {
  const Entries entries = entries_of(message);
  const at::Tensor indices = entries.gaps.to(at::kLong).bitwise_and_(kLargestGap).cumsum(0);
  sum.index_add_(0, indices, entries.values.to(sum.scalar_type()));
}

}  // namespace dtrain::parallel
