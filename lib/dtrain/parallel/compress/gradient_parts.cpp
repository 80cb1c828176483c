#include "dtrain/parallel/compress/gradient_parts.h"

#include <algorithm>
#include <ranges>

namespace dtrain::parallel {
namespace {

using Kind = config::Compression::Kind;

// A part travels while the next one is compressed, and its indices fit 32 bits.
constexpr std::int64_t kMostElements = std::int64_t{1} << 20;

// Factors of a matrix pay where they are smaller.
bool pays(std::int64_t rows, std::int64_t columns, std::int64_t rank) {
  return rank * (rows + columns) < rows * columns;
}

// From the first element to the last.
class Cutter {
 public:
  Cutter(const param::ArenaLayout& layout, const Compression& compression)
      : layout_(layout), compression_(compression) {}

  void add(param::ParameterId id, param::ElementRange own) {
    if (own.size() < compression_.min_elements) return add_whole(id, own);
    if (compression_.scheme.kind == Kind::power_sgd) return add_matrix(id, own);
    for (std::int64_t begin = own.begin; begin < own.end; begin += kMostElements) {
      parts_.push_back({.range = {begin, std::min(begin + kMostElements, own.end)},
                        .id = id,
                        .is_compressed = true});
    }
  }
  [[nodiscard]] std::vector<GradientPart> take() { return std::move(parts_); }

 private:
  void add_whole(param::ParameterId id, param::ElementRange own) {
    if (own.is_empty()) return;
    const bool continues = !parts_.empty() && !parts_.back().is_compressed &&
                           layout_.unit_of(parts_.back().id) == layout_.unit_of(id);
    if (continues) {
      parts_.back().range.end = own.end;
      parts_.back().id = id;
    } else {
      parts_.push_back({.range = own, .id = id});
    }
  }

  // A shard may begin and end within a row; those ends are sent whole.
  void add_matrix(param::ParameterId id, param::ElementRange own) {
    const std::int64_t columns = layout_.shape(id).back();
    const std::int64_t begin = layout_.range(id).begin;
    const std::int64_t first_row = (own.begin - begin + columns - 1) / columns;
    const std::int64_t end_row = (own.end - begin) / columns;
    const std::int64_t rows = end_row - first_row;
    if (!pays(rows, columns, compression_.scheme.max_rank)) return add_whole(id, own);
    const param::ElementRange matrix{begin + first_row * columns, begin + end_row * columns};
    add_whole(id, {own.begin, matrix.begin});
    parts_.push_back(
        {.range = matrix, .id = id, .is_compressed = true, .rows = rows, .columns = columns});
    add_whole(id, {matrix.end, own.end});
  }

  const param::ArenaLayout& layout_;
  const Compression& compression_;
  std::vector<GradientPart> parts_;
};

}  // namespace

std::vector<GradientPart> gradient_parts(const param::ArenaLayout& layout, param::ShardId shard,
                                         const Compression& compression) {
  Cutter cutter(layout, compression);
  for (const param::ParameterId id : layout.parameters()) {
    const param::ElementRange own = layout.range_in(id, shard);
    if (!own.is_empty() && !layout.is_frozen(id)) cutter.add(id, own);
  }
  std::vector<GradientPart> parts = cutter.take();
  std::ranges::reverse(parts);
  return parts;
}

}  // namespace dtrain::parallel
