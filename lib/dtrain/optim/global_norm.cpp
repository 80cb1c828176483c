#include "dtrain/optim/global_norm.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace dtrain::optim {
namespace {

using param::ElementRange;

constexpr std::int64_t kCell = param::kArenaAlignment;

// Eight running sums, so that the compiler may use vector instructions without changing the order
// of additions.
template <typename scalar_t>
double cell_sum(const scalar_t* values, std::int64_t count) {
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

// Calls cell(index, sum) for the cells of `count` values, in order.
template <typename scalar_t, typename Cell>
void for_each_cell(const scalar_t* values, std::int64_t count, Cell cell) {
  for (std::int64_t begin = 0; begin < count; begin += kCell) {
    cell(begin / kCell, cell_sum(values + begin, std::min(kCell, count - begin)));
  }
}

std::vector<param::ParameterId> by_name(const param::ParameterSpecs& specs) {
  std::vector<param::ParameterId> ids;
  for (const param::ParameterId id : specs.ids()) ids.push_back(id);
  std::sort(ids.begin(), ids.end(), [&](param::ParameterId a, param::ParameterId b) {
    return specs[a].name < specs[b].name;
  });
  return ids;
}

// Returns whether a boundary between shards of the unit lies inside the range.
bool is_cut_by_shards(const param::ArenaLayout& layout, param::UnitId unit, ElementRange range) {
  const std::int64_t begin = layout.unit_range(unit).begin;
  const std::int64_t size = layout.unit_range(unit).size() / layout.num_shards();
  return (range.begin - begin) / size != (range.end - 1 - begin) / size;
}

}  // namespace

GlobalNorm::GlobalNorm(const param::ArenaLayout& layout, param::ShardId shard)
    : parameters_(layout.num_parameters()) {
  for (const param::ParameterId id : layout.parameters()) {
    const param::UnitId unit = layout.unit_of(id);
    const ElementRange whole = layout.range(id);
    for (std::int64_t begin = whole.begin; begin < whole.end; begin += kNormBlock) {
      const ElementRange range{begin, std::min(begin + kNormBlock, whole.end)};
      const Block block{range, num_slots_, is_cut_by_shards(layout, unit, range)};
      num_slots_ += block.is_cut ? kNormBlock / kCell : 1;
      parameters_[id].push_back(block);
      const ElementRange own = common(range, layout.shard_range(unit, shard));
      if (own.is_empty()) continue;
      const std::int64_t skipped = (own.begin - range.begin) / kCell;
      own_.push_back({own, block.slot + skipped, block.is_cut});
    }
  }
}

at::Tensor GlobalNorm::sums_of(const param::Arena& values) const {
  const at::Tensor sums = at::zeros({num_slots_}, values.flat().options().dtype(at::kDouble));
  auto* slots = sums.mutable_data_ptr<double>();
  AT_DISPATCH_FLOATING_TYPES(values.flat().scalar_type(), "global_norm", [&] {
    const auto* all = values.flat().const_data_ptr<scalar_t>();
    at::parallel_for(0, static_cast<std::int64_t>(own_.size()), 8,
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t i = begin; i < end; ++i) {
                         const Block& block = own_[static_cast<std::size_t>(i)];
                         for_each_cell(all + values.position_of(block.range), block.range.size(),
                                       [&](std::int64_t cell, double sum) {
                                         slots[block.slot + (block.is_cut ? cell : 0)] += sum;
                                       });
                       }
                     });
  });
  return sums;
}

at::Tensor GlobalNorm::squares(const at::Tensor& sums) const {
  const at::Tensor squares = at::zeros({parameters_.size()}, sums.options());
  const auto* slots = sums.const_data_ptr<double>();
  auto* parameter = squares.mutable_data_ptr<double>();
  for (const std::vector<Block>& blocks : parameters_) {
    for (const Block& block : blocks) {
      const std::int64_t cells =
          block.is_cut ? (block.range.size() + kCell - 1) / kCell : std::int64_t{1};
      *parameter += std::accumulate(slots + block.slot, slots + block.slot + cells, 0.0);
    }
    ++parameter;
  }
  return squares;
}

at::Tensor norm_of_squares(const at::Tensor& squares, const param::ParameterSpecs& specs) {
  const at::Tensor total = at::zeros({}, squares.options());
  const auto* square = squares.const_data_ptr<double>();
  auto* sum = total.mutable_data_ptr<double>();
  for (const param::ParameterId id : by_name(specs)) *sum += square[id.value()];
  return total.sqrt_();
}

double global_norm(const param::Arena& values, const param::ArenaLayout& layout,
                   const param::ParameterSpecs& specs) {
  const GlobalNorm norm(layout, param::ShardId(0));
  return norm_of_squares(norm.squares(norm.sums_of(values)), specs).item<double>();
}

at::Tensor clip_factor(const at::Tensor& norm, double max_norm) {
  const at::Tensor one = at::ones_like(norm);
  if (max_norm == 0) return one;
  const at::Tensor is_larger = (norm > max_norm).logical_and(at::isfinite(norm));
  return at::where(is_larger, at::full_like(norm, max_norm).div_(norm), one);
}

void scale_by(const at::Tensor& values, const at::Tensor& factor) {
  const double value = *factor.const_data_ptr<double>();
  if (value != 1.0) values.mul_(value);
}

}  // namespace dtrain::optim
