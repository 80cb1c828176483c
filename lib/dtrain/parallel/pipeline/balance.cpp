#include "dtrain/parallel/pipeline/balance.h"

#include <algorithm>
#include <limits>

#include "dtrain/base/error.h"
#include "dtrain/parallel/pipeline/check.h"
#include "dtrain/parallel/pipeline/schedule.h"

namespace dtrain::parallel {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

// Gives part i split[i] layers; blocks 0 and num_layers + 1 are embedding and head.
std::vector<BlockRange> ranges_of(std::span<const std::int64_t> split) {
  std::vector<BlockRange> parts;
  model::BlockId begin(1);
  for (const std::int64_t layers : split) {
    parts.push_back({begin, begin + layers});
    begin = parts.back().end;
  }
  parts.front().begin = model::BlockId(0);
  ++parts.back().end;
  return parts;
}

// Returns the peak number of microbatches in flight, by part.
std::vector<double> microbatches_in_flight(const PipelineShape& shape) {
  std::vector<double> counts(static_cast<std::size_t>(shape.num_parts()));
  for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
    const InFlight kept = in_flight(shape, compute_order(shape, stage));
    for (std::int64_t chunk = 0; chunk < shape.chunks(); ++chunk) {
      counts[static_cast<std::size_t>(shape.part(stage, chunk))] =
          static_cast<double>(kept.by_chunk[static_cast<std::size_t>(chunk)]);
    }
  }
  return counts;
}

// Optimal partition by dynamic programming: best_[p][l] is the lowest cost of the most expensive
// part when the first p parts have the first l layers.
class Partition {
 public:
  Partition(const PipelineShape& shape, std::span<const BlockLoad> blocks)
      : num_parts_(shape.num_parts()),
        num_layers_(std::ssize(blocks) - 2),
        in_flight_(microbatches_in_flight(shape)),
        flops_(1, 0),
        bytes_(1, 0) {
    for (const BlockLoad& block : blocks) {
      flops_.push_back(flops_.back() + block.flops);
      bytes_.push_back(bytes_.back() + static_cast<double>(block.bytes));
    }
  }

  std::vector<std::int64_t> solve() {
    const auto flops = [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
      return sum(flops_, part, begin, end);
    };
    minimise(flops);
    // Tolerates rounding of equal sums in different orders.
    const double allowed = best(num_parts_, num_layers_) * (1 + 1e-9);
    minimise([&](std::int64_t part, std::int64_t begin, std::int64_t end) {
      if (flops(part, begin, end) > allowed) return kImpossible;
      return in_flight_[static_cast<std::size_t>(part)] * sum(bytes_, part, begin, end);
    });
    return backtrack();
  }

 private:
  // Returns the total of layers [begin, end), and of the embedding or head if the part has it.
  [[nodiscard]] double sum(const std::vector<double>& up_to, std::int64_t part, std::int64_t begin,
                           std::int64_t end) const {
    const std::int64_t first = part == 0 ? 0 : begin + 1;
    const std::int64_t last = part == num_parts_ - 1 ? end + 2 : end + 1;
    return up_to[static_cast<std::size_t>(last)] - up_to[static_cast<std::size_t>(first)];
  }

  [[nodiscard]] std::size_t index(std::int64_t parts, std::int64_t layers) const {
    return static_cast<std::size_t>(parts * (num_layers_ + 1) + layers);
  }
  [[nodiscard]] double best(std::int64_t parts, std::int64_t layers) const {
    return best_[index(parts, layers)];
  }

  template <typename Cost>
  void minimise(const Cost& cost) {
    best_.assign(index(num_parts_ + 1, 0), kImpossible);
    last_begin_.assign(best_.size(), 0);
    best_[0] = 0;
    for (std::int64_t part = 0; part < num_parts_; ++part) {
      for (std::int64_t end = part + 1; end <= num_layers_; ++end) {
        for (std::int64_t begin = part; begin < end; ++begin) {
          const double largest = std::max(best(part, begin), cost(part, begin, end));
          if (largest >= best(part + 1, end)) continue;
          best_[index(part + 1, end)] = largest;
          last_begin_[index(part + 1, end)] = begin;
        }
      }
    }
  }

  [[nodiscard]] std::vector<std::int64_t> backtrack() const {
    std::vector<std::int64_t> split;
    std::int64_t end = num_layers_;
    for (std::int64_t parts = num_parts_; parts > 0; --parts) {
      const std::int64_t begin = last_begin_[index(parts, end)];
      split.push_back(end - begin);
      end = begin;
    }
    std::reverse(split.begin(), split.end());
    return split;
  }

  std::int64_t num_parts_;
  std::int64_t num_layers_;
  std::vector<double> in_flight_;  // by part
  std::vector<double> flops_;      // prefix sums over blocks
  std::vector<double> bytes_;      // prefix sums over blocks
  std::vector<double> best_;       // by number of parts and of layers
  std::vector<std::int64_t> last_begin_;
};

}  // namespace

std::vector<BlockRange> split_manually(const PipelineShape& shape, std::int64_t num_layers,
                                       const std::vector<std::int64_t>& split) {
  config::require_layers_fit(shape.order, shape.stages, split, num_layers);
  return ranges_of(split);
}

std::vector<BlockRange> balance_parts(const PipelineShape& shape,
                                      std::span<const BlockLoad> blocks) {
  DTRAIN_CHECK(blocks.size() >= 3, "{} blocks", blocks.size());
  config::require_layers_fit(shape.order, shape.stages, {}, std::ssize(blocks) - 2);
  return ranges_of(Partition(shape, blocks).solve());
}

}  // namespace dtrain::parallel
