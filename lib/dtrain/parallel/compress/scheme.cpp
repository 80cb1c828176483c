#include "dtrain/parallel/compress/scheme.h"

#include "dtrain/base/error.h"
#include "dtrain/parallel/compress/power_sgd.h"
#include "dtrain/parallel/compress/top_k.h"

namespace dtrain::parallel {

namespace {

using Kind = config::Compression::Kind;

constexpr std::int64_t kRoundedBytes = 2;

// Sends bfloat16 or float16, which the group adds. Format: n values of 2 bytes.
class Rounding final : public Scheme {
 public:
  Rounding(std::int64_t size, at::ScalarType dtype, comm::ProcessGroup& group,
           const param::ArenaAllocator& allocate)
      : group_(group), message_(allocate(size * kRoundedBytes).view(dtype)) {}

  [[nodiscard]] static SchemeCosts costs(std::int64_t size, std::int64_t num_ranks) {
    const std::int64_t bytes = size * kRoundedBytes;
    return {.buffers = bytes, .sent = bytes_in_ring(bytes, num_ranks), .calls = 1};
  }

  void begin(const at::Tensor& values) override {
    message_.copy_(values);
    values.sub_(message_);
    work_ = group_.all_reduce(message_);
  }

  void finish(const at::Tensor& sum) override {
    work_.wait();
    sum.copy_(message_);
  }

 private:
  comm::ProcessGroup& group_;
  at::Tensor message_;  // (n) of 16 bits
  comm::Work work_;
};

}  // namespace

SchemeCosts scheme_costs(const GradientPart& part, const config::Compression& scheme,
                         std::int64_t num_ranks, at::ScalarType dtype) {
  switch (scheme.kind) {
    case Kind::none:
      break;
    case Kind::bfloat16:
    case Kind::float16:
      return Rounding::costs(part.size(), num_ranks);
    case Kind::top_k:
      return TopK::costs(part.size(), scheme.ratio, num_ranks, dtype);
    case Kind::power_sgd:
      return PowerSgd::costs(part, scheme.max_rank, num_ranks, dtype);
  }
  base::fail(base::ErrorKind::internal, "no scheme of compression");
}

std::unique_ptr<Scheme> make_scheme(const GradientPart& part, const config::Compression& scheme,
                                    comm::ProcessGroup& group, at::ScalarType dtype,
                                    const param::ArenaAllocator& allocate) {
  switch (scheme.kind) {
    case Kind::none:
      break;
    case Kind::bfloat16:
      return std::make_unique<Rounding>(part.size(), at::kBFloat16, group, allocate);
    case Kind::float16:
      return std::make_unique<Rounding>(part.size(), at::kHalf, group, allocate);
    case Kind::top_k:
      return std::make_unique<TopK>(part.size(), scheme.ratio, group, allocate);
    case Kind::power_sgd:
      return std::make_unique<PowerSgd>(part, scheme.max_rank, group, dtype, allocate);
  }
  base::fail(base::ErrorKind::internal, "no scheme of compression");
}

}  // namespace dtrain::parallel
