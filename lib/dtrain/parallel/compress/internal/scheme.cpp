#include "dtrain/parallel/compress/internal/scheme.h"

#include <algorithm>
#include <ranges>

#include "dtrain/base/error.h"
#include "dtrain/parallel/compress/internal/power_sgd.h"
#include "dtrain/parallel/compress/internal/top_k.h"

namespace dtrain::parallel {
namespace {

using SchemeKind = config::Compression::Kind;

constexpr std::int64_t kRoundedBytes = 2;

// Rounds to bfloat16 or float16 and all-reduces in that dtype. Format: n values of 2 bytes.
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

// Small enough to overlap sending a part with compressing the next, and for 32-bit indices.
constexpr std::int64_t kMaxPartElements = std::int64_t{1} << 20;

// Splits a shard's gradients into parts, in the order of the arena.
class PartSplitter {
 public:
  PartSplitter(const param::ArenaLayout& layout, const Compression& compression)
      : layout_(layout), compression_(compression) {}

  void add(param::ParameterId id, param::ElementRange own) {
    if (own.size() < compression_.min_elements) return add_whole(id, own);
    if (compression_.scheme.kind == SchemeKind::power_sgd) return add_matrix(id, own);
    for (std::int64_t begin = own.begin; begin < own.end; begin += kMaxPartElements) {
      parts_.push_back({.range = {begin, std::min(begin + kMaxPartElements, own.end)},
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

  // A shard may begin and end within a row; those partial rows are sent uncompressed.
  void add_matrix(param::ParameterId id, param::ElementRange own) {
    const std::int64_t columns = layout_.shape(id).back();
    const std::int64_t begin = layout_.range(id).begin;
    const std::int64_t first_row = (own.begin - begin + columns - 1) / columns;
    const std::int64_t end_row = (own.end - begin) / columns;
    const std::int64_t rows = end_row - first_row;
    // Factors save bytes only if they are smaller than the matrix.
    const std::int64_t rank = compression_.scheme.max_rank;
    if (rank * (rows + columns) >= rows * columns) return add_whole(id, own);
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

SchemeCosts scheme_costs(const GradientPart& part, const config::Compression& scheme,
                         std::int64_t num_ranks, at::ScalarType dtype) {
  switch (scheme.kind) {
    case SchemeKind::none:
      break;
    case SchemeKind::bfloat16:
    case SchemeKind::float16:
      return Rounding::costs(part.size(), num_ranks);
    case SchemeKind::top_k:
      return TopK::costs(part.size(), scheme.ratio, num_ranks, dtype);
    case SchemeKind::power_sgd:
      return PowerSgd::costs(part, scheme.max_rank, num_ranks, dtype);
  }
  base::fail(base::ErrorKind::internal, "unknown compression scheme");
}

std::unique_ptr<Scheme> make_scheme(const GradientPart& part, const config::Compression& scheme,
                                    comm::ProcessGroup& group, at::ScalarType dtype,
                                    const param::ArenaAllocator& allocate) {
  switch (scheme.kind) {
    case SchemeKind::none:
      break;
    case SchemeKind::bfloat16:
      return std::make_unique<Rounding>(part.size(), at::kBFloat16, group, allocate);
    case SchemeKind::float16:
      return std::make_unique<Rounding>(part.size(), at::kHalf, group, allocate);
    case SchemeKind::top_k:
      return std::make_unique<TopK>(part.size(), scheme.ratio, group, allocate);
    case SchemeKind::power_sgd:
      return std::make_unique<PowerSgd>(part, scheme.max_rank, group, dtype, allocate);
  }
  base::fail(base::ErrorKind::internal, "unknown compression scheme");
}

std::vector<GradientPart> gradient_parts(const param::ArenaLayout& layout, param::ShardId shard,
                                         const Compression& compression) {
  PartSplitter splitter(layout, compression);
  for (const param::ParameterId id : layout.parameters()) {
    const param::ElementRange own = layout.range_in(id, shard);
    if (!own.is_empty() && !layout.is_frozen(id)) splitter.add(id, own);
  }
  std::vector<GradientPart> parts = splitter.take();
  std::ranges::reverse(parts);
  return parts;
}

}  // namespace dtrain::parallel
