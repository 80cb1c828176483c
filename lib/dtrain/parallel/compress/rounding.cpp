#include "dtrain/parallel/compress/rounding.h"

namespace dtrain::parallel {
namespace {

constexpr std::int64_t kBytes = 2;

}  // namespace

Rounding::Rounding(std::int64_t size, at::ScalarType dtype, comm::ProcessGroup& group,
                   const param::ArenaAllocator& allocate)
    : group_(group), message_(allocate(size * kBytes).view(dtype)) {}

SchemeCosts Rounding::costs(std::int64_t size, std::int64_t num_ranks) {
  return {.buffers = size * kBytes, .sent = bytes_in_ring(size * kBytes, num_ranks), .calls = 1};
}

void Rounding::begin(const at::Tensor& values) {
  message_.copy_(values);
  values.sub_(message_);
  work_ = group_.all_reduce(message_);
}

void Rounding::finish(const at::Tensor& sum) {
  work_.wait();
  sum.copy_(message_);
}

}  // namespace dtrain::parallel
