#include "dtrain/model/bdh/internal/bdh_partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "dtrain/base/error.h"

namespace dtrain::model::bdh {
namespace {

// Whole heads, or equal parts of heads that keep RoPE's pairs together.
bool fits(const BdhSizes& sizes, std::int64_t tp) {
  if (tp <= sizes.heads) return sizes.heads % tp == 0;
  if (tp % sizes.heads != 0) return false;
  const std::int64_t ranks = tp / sizes.heads;
  return sizes.neurons % ranks == 0 && sizes.neurons / ranks % 2 == 0;
}

// "4 or 8": the nearest sizes below and above that fit.
std::string fitting_near(const BdhSizes& sizes, std::int64_t tp) {
  const std::int64_t largest = sizes.heads * (sizes.neurons / 2);
  std::int64_t below = std::min(tp, largest);
  while (!fits(sizes, below)) --below;  // 1 fits
  std::int64_t above = tp;
  while (above <= largest && !fits(sizes, above)) ++above;
  return above > largest ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
}

// Neighbours that share a head; 1 where heads stay whole.
std::int64_t ranks_per_head(const BdhSizes& sizes, std::int64_t tp) {
  DTRAIN_CHECK(tp >= 1);
  if (fits(sizes, tp)) return std::max<std::int64_t>(1, tp / sizes.heads);
  if (tp <= sizes.heads || tp % sizes.heads != 0) {
    base::fail(base::ErrorKind::usage,
               "--tp {} does not fit --heads {}: ranks hold whole heads, or equal numbers of ranks "
               "share each head; use --tp {}",
               tp, sizes.heads, fitting_near(sizes, tp));
  }
  base::fail(base::ErrorKind::usage,
             "--tp {} with --heads {} would cut the --neurons {} of a head into {} parts, which "
             "must be equal and even; use --tp {}",
             tp, sizes.heads, sizes.neurons, tp / sizes.heads, fitting_near(sizes, tp));
}

}  // namespace

std::vector<mesh::Subgroup> tensor_subgroups(const BdhSizes& sizes, std::int64_t tp) {
  return {{.name = "head", .size = ranks_per_head(sizes, tp)}};
}

BdhSlice slice_of(const BdhSizes& sizes, const TensorCoordinate& place) {
  DTRAIN_CHECK(0 <= place.index && place.index < place.size);
  BdhSlice part{.whole = sizes, .place = place};
  part.ranks_per_head = ranks_per_head(sizes, place.size);
  part.heads = std::max<std::int64_t>(1, sizes.heads / place.size);
  part.neurons = sizes.neurons / part.ranks_per_head;
  part.first_neuron = place.index * part.all_neurons();
  part.vocab = sizes.vocab;
  if (!place.splits_vocab) return part;
  if (sizes.vocab % place.size != 0) {
    base::fail(
        base::ErrorKind::usage,
        "--tp-vocab cuts --vocab {} into --tp {} equal parts, which leaves {}; use a --vocab "
        "that is a multiple of {}, or no --tp-vocab",
        sizes.vocab, place.size, sizes.vocab % place.size, place.size);
  }
  part.vocab = sizes.vocab / place.size;
  part.first_token = place.index * part.vocab;
  return part;
}

void BdhSlice::check(const TensorAxis& axis) const {
  DTRAIN_CHECK(axis.index() == place.index && axis.size() == place.size,
               "a block of rank {} of {} runs on rank {} of {}", place.index, place.size,
               axis.index(), axis.size());
}

}  // namespace dtrain::model::bdh
