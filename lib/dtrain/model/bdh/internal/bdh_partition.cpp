#include "dtrain/model/bdh/internal/bdh_partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "dtrain/base/error.h"

namespace dtrain::model::bdh {
namespace {

// True if ranks hold whole heads, or equal parts of heads that do not split RoPE's pairs.
bool fits(const BdhSizes& sizes, std::int64_t tp) {
  if (tp <= sizes.heads) return sizes.heads % tp == 0;
  if (tp % sizes.heads != 0) return false;
  const std::int64_t ranks = tp / sizes.heads;
  return sizes.neurons % ranks == 0 && sizes.neurons / ranks % 2 == 0;
}

// Returns the nearest valid sizes below and above `tp`: "4 or 8".
std::string fitting_near(const BdhSizes& sizes, std::int64_t tp) {
  const std::int64_t largest = sizes.heads * (sizes.neurons / 2);
  std::int64_t below = std::min(tp, largest);
  while (!fits(sizes, below)) --below;  // 1 fits
  std::int64_t above = tp;
  while (above <= largest && !fits(sizes, above)) ++above;
  return above > largest ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
}

// Returns the number of ranks that share a head; 1 if heads are not split.
std::int64_t ranks_per_head(const BdhSizes& sizes, std::int64_t tp) {
  DTRAIN_CHECK(tp >= 1);
  if (fits(sizes, tp)) return std::max<std::int64_t>(1, tp / sizes.heads);
  if (tp <= sizes.heads || tp % sizes.heads != 0) {
    base::fail(
        base::ErrorKind::usage,
        "--tp {} does not fit --heads {}: it must divide the number of heads or be a multiple "
        "of it; use --tp {}",
        tp, sizes.heads, fitting_near(sizes, tp));
  }
  base::fail(
      base::ErrorKind::usage,
      "--tp {} with --heads {} splits the --neurons {} of a head into {} parts, which must have an "
      "equal, even number of neurons; use --tp {}",
      tp, sizes.heads, sizes.neurons, tp / sizes.heads, fitting_near(sizes, tp));
}

}  // namespace

std::vector<mesh::Subgroup> tensor_subgroups(const BdhSizes& sizes, std::int64_t tp) {
  return {{.name = "head", .size = ranks_per_head(sizes, tp)}};
}

BdhSlice slice_of(const BdhSizes& sizes, const TensorCoordinate& place) {
  DTRAIN_CHECK(0 <= place.index && place.index < place.size);
  BdhSlice slice{.whole = sizes, .place = place};
  slice.ranks_per_head = ranks_per_head(sizes, place.size);
  slice.heads = std::max<std::int64_t>(1, sizes.heads / place.size);
  slice.neurons = sizes.neurons / slice.ranks_per_head;
  slice.first_neuron = place.index * slice.all_neurons();
  slice.vocab = sizes.vocab;
  if (!place.splits_vocab) return slice;
  if (sizes.vocab < place.size) {
    base::fail(base::ErrorKind::usage,
               "--tp-vocab: --vocab {} is below --tp {}: use fewer ranks, or omit --tp-vocab",
               sizes.vocab, place.size);
  }
  const TensorPart tokens = place.part_of(sizes.vocab);
  slice.vocab = tokens.count;
  slice.first_token = tokens.begin;
  return slice;
}

void BdhSlice::check(const TensorAxis& axis) const {
  DTRAIN_CHECK(axis.index() == place.index && axis.size() == place.size,
               "a block made for rank {} of {} runs on rank {} of {}", place.index, place.size,
               axis.index(), axis.size());
}

}  // namespace dtrain::model::bdh
