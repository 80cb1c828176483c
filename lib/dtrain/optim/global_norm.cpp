#include "dtrain/optim/global_norm.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>

#include "dtrain/device/operator.h"
#include "dtrain/optim/norm_cell.h"

namespace dtrain::optim {
namespace {

using param::ElementRange;

constexpr std::int64_t kCell = kNormCell;
static_assert(param::kArenaAlignment % kCell == 0);

// Equals sum_of_lanes of the cell's lane_sums, in a form that compilers vectorize.
template <typename scalar_t>
double cell_sum(const scalar_t* values, std::int64_t count) {
  constexpr std::int64_t kLanes = kNormLanes;
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
  return sum_of_lanes(sums.data());
}

// Adds each block's sum of squares of `values` to sums (slots) float64. blocks (n, 4) int64: rows of
// NormBlock.
void norm_sums_on_cpu(const at::Tensor& values, const at::Tensor& blocks, const at::Tensor& sums) {
  auto* slots = sums.mutable_data_ptr<double>();
  const auto* table = reinterpret_cast<const NormBlock*>(blocks.const_data_ptr<std::int64_t>());
  AT_DISPATCH_FLOATING_TYPES(values.scalar_type(), "norm_sums", [&] {
    const auto* all = values.const_data_ptr<scalar_t>();
    at::parallel_for(0, blocks.size(0), 8, [&](std::int64_t begin, std::int64_t end) {
      for (const NormBlock& block : std::span(table + begin, table + end)) {
        for (std::int64_t cell = 0; cell < block.num_cells(); ++cell) {
          slots[block.slot + cell * block.is_cell_wise] +=
              cell_sum(all + block.first + cell * kCell, block.count_of(cell));
        }
      }
    });
  });
}

// Returns the sum of squares of each parameter, (parameters) float64. blocks (n, 2) int64: first
// slot, number of slots; ends (parameters) int64: one past the parameter's last block.
at::Tensor norm_squares_on_cpu(const at::Tensor& sums, const at::Tensor& blocks,
                               const at::Tensor& ends) {
  at::Tensor squares = at::zeros(ends.sizes(), sums.options());
  const auto* slots = sums.const_data_ptr<double>();
  const auto* table = blocks.const_data_ptr<std::int64_t>();
  const auto* end = ends.const_data_ptr<std::int64_t>();
  auto* parameter = squares.mutable_data_ptr<double>();
  for (std::int64_t id = 0, block = 0; id < ends.numel(); ++id) {
    for (; block < end[id]; ++block) {
      const double* first = slots + table[block * 2];
      parameter[id] += std::accumulate(first, first + table[block * 2 + 1], 0.0);
    }
  }
  return squares;
}

void scale_on_cpu(const at::Tensor& values, const at::Tensor& factor) {
  const double value = *factor.const_data_ptr<double>();
  if (value != 1.0) values.mul_(value);
}

TORCH_LIBRARY_FRAGMENT(dtrain, operators) {
  operators.def("norm_sums_(Tensor values, Tensor blocks, Tensor(a!) sums) -> ()");
  operators.def("norm_squares(Tensor sums, Tensor blocks, Tensor ends) -> Tensor");
  operators.def("scale_(Tensor(a!) values, Tensor factor) -> ()");
}
TORCH_LIBRARY_IMPL(dtrain, CPU, kernels) {
  kernels.impl("norm_sums_", norm_sums_on_cpu);
  kernels.impl("norm_squares", norm_squares_on_cpu);
  kernels.impl("scale_", scale_on_cpu);
}

void add_norm_sums(const at::Tensor& values, const at::Tensor& blocks, const at::Tensor& sums) {
  static const device::Operator<decltype(norm_sums_on_cpu)> kNormSums("dtrain::norm_sums_");
  kNormSums(values, blocks, sums);
}

// A block of the layout, and the slots of its sums.
struct Block {
  ElementRange range;
  std::int64_t slot = 0;  // of its sum, or of its first cell's sum
  bool is_cut = false;    // crosses a shard boundary

  [[nodiscard]] std::int64_t num_slots() const {
    return is_cut ? (range.size() + kCell - 1) / kCell : 1;
  }
};

// True if a shard boundary of the unit lies inside the range.
bool is_cut_by_shards(const param::ArenaLayout& layout, param::UnitId unit, ElementRange range) {
  const std::int64_t begin = layout.unit_range(unit).begin;
  const std::int64_t size = layout.unit_range(unit).size() / layout.num_shards();
  return (range.begin - begin) / size != (range.end - 1 - begin) / size;
}

// The parameter's blocks; slots are assigned from `slot` on.
std::vector<Block> blocks_of(const param::ArenaLayout& layout, param::ParameterId id,
                             std::int64_t slot) {
  std::vector<Block> blocks;
  const ElementRange whole = layout.range(id);
  for (std::int64_t begin = whole.begin; begin < whole.end; begin += kNormBlock) {
    const ElementRange range{begin, std::min(begin + kNormBlock, whole.end)};
    blocks.push_back({range, slot, is_cut_by_shards(layout, layout.unit_of(id), range)});
    slot += blocks.back().is_cut ? kNormBlock / kCell : 1;
  }
  return blocks;
}

// (values / columns, columns) int64.
at::Tensor table_of(const std::vector<std::int64_t>& values, std::int64_t columns,
                    c10::Device device) {
  return at::tensor(values, at::kLong).view({std::ssize(values) / columns, columns}).to(device);
}

// Returns the rows of norm_sums_'s table for the parts of the blocks within `owned`.
std::vector<std::int64_t> rows_within(ElementRange owned, const std::vector<Block>& blocks) {
  std::vector<std::int64_t> rows;
  for (const Block& block : blocks) {
    const ElementRange own = intersection(block.range, owned);
    if (own.is_empty()) continue;
    const std::int64_t skipped = (own.begin - block.range.begin) / kCell;
    rows.insert(rows.end(), {own.begin - owned.begin, own.size(), block.slot + skipped,
                             static_cast<std::int64_t>(block.is_cut)});
  }
  return rows;
}

std::vector<std::int64_t> ids_by_name(const param::ParameterSpecs& specs) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(specs.size()));
  std::iota(ids.begin(), ids.end(), std::int64_t{0});
  std::sort(ids.begin(), ids.end(), [&](std::int64_t a, std::int64_t b) {
    return specs[param::ParameterId(a)].name < specs[param::ParameterId(b)].name;
  });
  return ids;
}

}  // namespace

GlobalNorm::GlobalNorm(const param::ArenaLayout& layout, const param::ParameterSpecs& specs,
                       param::ShardId shard, c10::Device device)
    : by_name_(table_of(ids_by_name(specs), 1, device).flatten()) {
  std::vector<Block> all;
  std::vector<std::int64_t> slots;
  std::vector<std::int64_t> ends;
  for (const param::ParameterId id : layout.parameters()) {
    for (const Block& block : blocks_of(layout, id, num_slots_)) {
      all.push_back(block);
      slots.insert(slots.end(), {block.slot, block.num_slots()});
      num_slots_ = block.slot + (block.is_cut ? kNormBlock / kCell : 1);
    }
    ends.push_back(std::ssize(all));
  }
  blocks_ = table_of(slots, 2, device);
  ends_ = table_of(ends, 1, device).flatten();
  for (const ElementRange owned : layout.ranges(param::Elements::all, shard)) {
    own_.push_back({owned, table_of(rows_within(owned, all), 4, device)});
  }
}

at::Tensor GlobalNorm::sums_of(const param::Arena& values) const {
  at::Tensor sums = at::zeros({num_slots_}, values.flat().options().dtype(at::kDouble));
  for (const OwnBlocks& own : own_) {
    if (values.holds(own.range)) add_norm_sums(values.slice(own.range), own.table, sums);
  }
  return sums;
}

at::Tensor GlobalNorm::squares(const at::Tensor& sums) const {
  static const device::Operator<decltype(norm_squares_on_cpu)> kNormSquares("dtrain::norm_squares");
  return kNormSquares(sums, blocks_, ends_);
}

at::Tensor GlobalNorm::norm(const at::Tensor& squares) const {
  return device::ordered_sum(squares.index_select(0, by_name_)).sqrt_();
}

at::Tensor norm_of(const at::Tensor& values) {
  const at::Tensor slots =
      at::arange((values.numel() + kNormBlock - 1) / kNormBlock, values.options().dtype(at::kLong));
  const at::Tensor first = slots.mul(kNormBlock);
  const at::Tensor count = first.sub(values.numel()).neg_().clamp_max_(kNormBlock);
  const at::Tensor sums = at::zeros(slots.sizes(), values.options().dtype(at::kDouble));
  add_norm_sums(values, at::stack({first, count, slots, at::zeros_like(slots)}, 1), sums);
  return device::ordered_sum(sums).sqrt_();
}

at::Tensor clip_factor(const at::Tensor& norm, double max_norm) {
  const at::Tensor one = at::ones_like(norm);
  if (max_norm == 0) return one;
  const at::Tensor is_larger = (norm > max_norm).logical_and(at::isfinite(norm));
  return at::where(is_larger, at::full_like(norm, max_norm).div_(norm), one);
}

void scale_by(const at::Tensor& values, const at::Tensor& factor) {
  static const device::Operator<decltype(scale_on_cpu)> kScale("dtrain::scale_");
  kScale(values, factor);
}

}  // namespace dtrain::optim
