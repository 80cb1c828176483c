#include "dtrain/optim/global_norm.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

namespace dtrain::optim {
namespace {

// Eight running sums, so that the compiler may use vector instructions without changing the order
// of additions.
template <typename scalar_t>
double sum_of_squares(const scalar_t* values, std::int64_t count) {
  constexpr std::int64_t kLanes = 8;
  std::array<double, kLanes> sums{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      sums[static_cast<std::size_t>(lane)] += value * value;
    }
  }
  for (; i < count; ++i) {
    const auto value = static_cast<double>(values[i]);
    sums[static_cast<std::size_t>(i % kLanes)] += value * value;
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

double parameter_sum(const at::Tensor& gradient) {
  const std::int64_t count = gradient.numel();
  std::vector<double> blocks(static_cast<std::size_t>((count + kNormBlock - 1) / kNormBlock));
  AT_DISPATCH_FLOATING_TYPES(gradient.scalar_type(), "global_norm", [&] {
    const auto* values = gradient.const_data_ptr<scalar_t>();
    at::parallel_for(0, static_cast<std::int64_t>(blocks.size()), 8,
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t b = begin; b < end; ++b) {
                         const std::int64_t first = b * kNormBlock;
                         blocks[static_cast<std::size_t>(b)] =
                             sum_of_squares(values + first, std::min(kNormBlock, count - first));
                       }
                     });
  });
  return std::accumulate(blocks.begin(), blocks.end(), 0.0);
}

}  // namespace

double global_norm(const param::Arena& gradients, const param::ArenaLayout& layout,
                   std::span<const param::ParameterSpec> specs) {
  std::vector<param::ParameterId> ids(static_cast<std::size_t>(layout.num_parameters()));
  std::iota(ids.begin(), ids.end(), param::ParameterId{0});
  std::sort(ids.begin(), ids.end(), [&](param::ParameterId a, param::ParameterId b) {
    return specs[static_cast<std::size_t>(a)].name < specs[static_cast<std::size_t>(b)].name;
  });
  double total = 0;
  for (const param::ParameterId id : ids) total += parameter_sum(gradients.view(id));
  return std::sqrt(total);
}

double clip_factor(double norm, double max_norm) {
  if (max_norm == 0 || norm <= max_norm) return 1.0;
  return max_norm / norm;
}

}  // namespace dtrain::optim
