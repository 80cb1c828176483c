#include "dtrain/config/values/batch.h"

#include <algorithm>
#include <string_view>

#include "dtrain/base/error.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

constexpr std::string_view kPp = "--pp";

// Returns global / (factor * dp); throws if it is not an integer.
std::int64_t share_of_global(const BatchConfig& batch, std::int64_t factor,
                             std::string_view factor_name, std::int64_t dp) {
  if (batch.global % (factor * dp) != 0) {
    fail(ErrorKind::usage,
         "--global-batch {} is not a multiple of {}{} data-parallel rank{}: change one of them{}",
         batch.global, factor == 1 ? "" : fmt::format("{} {} x ", factor_name, factor), dp,
         dp == 1 ? "" : "s", factor_name == kPp && factor > 1 ? ", or give --microbatch" : "");
  }
  return batch.global / (factor * dp);
}

// Limits derived counts; the schema limits only settings that are given.
void require_count(const BatchConfig& batch, std::string_view what, std::int64_t count,
                   std::string_view flag) {
  constexpr std::int64_t kMaxCount = 1 << 20;
  if (count <= kMaxCount) return;
  fail(ErrorKind::usage,
       "--global-batch {} implies {} of {}, more than the limit of {}: lower it, or raise {}",
       batch.global, what, count, kMaxCount, flag);
}

// Splits a global batch into microbatches whose number per rank is a multiple of `stages`.
void resolve_automatic_microbatch(BatchConfig& batch, std::int64_t stages, std::int64_t dp) {
  const std::int64_t share = share_of_global(batch, stages, kPp, dp);
  batch.microbatch = divisors_up_to(kMaxAutomaticMicrobatch, share).front();
  batch.grad_accum = share / batch.microbatch * stages;
  require_count(batch, "a --grad-accum", batch.grad_accum, "--microbatch");
}

}  // namespace

bool is_microbatch_automatic(const BatchConfig& requested) {
  return requested.global != 0 && requested.microbatch == 0 && requested.grad_accum == 0;
}

std::vector<std::int64_t> divisors_up_to(std::int64_t max, std::int64_t number) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t divisor = max; divisor >= 1; --divisor) {
    if (number % divisor == 0) divisors.push_back(divisor);
  }
  return divisors;
}

std::vector<std::int64_t> microbatch_candidates(const Config& config, std::int64_t max) {
  const BatchConfig& batch = config.batch;
  return divisors_up_to(max, batch.microbatch * batch.grad_accum / config.layout.pp);
}

void set_microbatch(Config& config, std::int64_t microbatch) {
  BatchConfig& batch = config.batch;
  batch.grad_accum = batch.microbatch * batch.grad_accum / microbatch;
  batch.microbatch = microbatch;
}

void resolve_batch(BatchConfig& batch, const LayoutConfig& layout) {
  const std::int64_t dp = layout.dp;
  if (batch.global == 0 && batch.microbatch == 0) {
    batch.microbatch = kDefaultMicrobatch;
    const std::int64_t at_once = dp * layout.pp;  // one microbatch per stage and replica
    if (batch.grad_accum == 0) {
      batch.global = (kDefaultGlobalBatch + at_once - 1) / at_once * at_once;
    }
  }
  if (is_microbatch_automatic(batch)) return resolve_automatic_microbatch(batch, layout.pp, dp);
  if (batch.grad_accum == 0 && batch.global == 0) batch.grad_accum = layout.pp;
  if (batch.global == 0) {
    batch.global = batch.microbatch * batch.grad_accum * dp;
  } else if (batch.microbatch == 0) {
    batch.microbatch = share_of_global(batch, batch.grad_accum, "--grad-accum", dp);
    require_count(batch, "a --microbatch", batch.microbatch, "--grad-accum");
  } else if (batch.grad_accum == 0) {
    batch.grad_accum = share_of_global(batch, batch.microbatch, "--microbatch", dp);
    require_count(batch, "a --grad-accum", batch.grad_accum, "--microbatch");
  }
  const std::int64_t product = batch.microbatch * batch.grad_accum * dp;
  if (product != batch.global) {
    fail(ErrorKind::usage,
         "--global-batch {} is not --microbatch {} x --grad-accum {} x {} data-parallel rank{} = "
         "{}: omit one of them",
         batch.global, batch.microbatch, batch.grad_accum, dp, dp == 1 ? "" : "s", product);
  }
}

void resolve_auto_layout_batch(BatchConfig& batch, std::int64_t num_ranks) {
  if (batch.global != 0) return;
  const std::int64_t at_once = num_ranks * std::max<std::int64_t>(1, batch.microbatch) *
                               std::max<std::int64_t>(1, batch.grad_accum);
  batch.global = (kDefaultGlobalBatch + at_once - 1) / at_once * at_once;
}

std::string batch_note(const BatchConfig& requested, const Config& config) {
  const BatchConfig& batch = config.batch;
  const std::int64_t dp = config.layout.dp;
  const std::string ranks = fmt::format("{} data-parallel rank{}", dp, dp == 1 ? "" : "s");
  const bool is_all_default =
      requested.microbatch == 0 && requested.grad_accum == 0 && batch.global == kDefaultGlobalBatch;
  if (requested.global == 0 && !is_all_default) {
    return fmt::format(
        "the global batch of {} results from microbatches of {} and {}, so another number of ranks "
        "changes the batch and the training result; give --global-batch to keep it",
        batch.global, batch.microbatch, ranks);
  }
  if (requested.global != 0 && requested.microbatch == 0) {
    return fmt::format(
        "the microbatch of {} results from the global batch of {} and {}, so another number of "
        "ranks may change bits; give --microbatch to keep them (--grad-accum adapts)",
        batch.microbatch, batch.global, ranks);
  }
  return {};
}

}  // namespace dtrain::config
