#include "dtrain/config/open_microbatch.h"

namespace dtrain::config {

bool is_microbatch_open(const BatchConfig& asked) {
  return asked.global != 0 && asked.microbatch == 0 && asked.grad_accum == 0;
}

std::vector<std::int64_t> divisors_up_to(std::int64_t most, std::int64_t number) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t divisor = most; divisor >= 1; --divisor) {
    if (number % divisor == 0) divisors.push_back(divisor);
  }
  return divisors;
}

std::vector<std::int64_t> open_microbatches(const Config& config, std::int64_t most) {
  const BatchConfig& batch = config.batch;
  return divisors_up_to(most, batch.microbatch * batch.grad_accum / config.layout.pp);
}

void set_microbatch(Config& config, std::int64_t microbatch) {
  BatchConfig& batch = config.batch;
  batch.grad_accum = batch.microbatch * batch.grad_accum / microbatch;
  batch.microbatch = microbatch;
}

}  // namespace dtrain::config
