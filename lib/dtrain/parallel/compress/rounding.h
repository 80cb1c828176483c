// Gradients rounded to 16 bits.
#pragma once

#include <cstdint>

#include "dtrain/parallel/compress/scheme.h"

namespace dtrain::parallel {

/// Sends bfloat16 or float16, which the group adds. Format: n values of 2 bytes.
class Rounding final : public Scheme {
 public:
  Rounding(std::int64_t size, at::ScalarType dtype, comm::ProcessGroup& group,
           const param::ArenaAllocator& allocate);

  [[nodiscard]] static SchemeCosts costs(std::int64_t size, std::int64_t num_ranks);

  void begin(const at::Tensor& values) override;
  void finish(const at::Tensor& sum) override;

 private:
  comm::ProcessGroup& group_;
  at::Tensor message_;  // (n) of 16 bits
  comm::Work work_;
};

}  // namespace dtrain::parallel
