#include "dtrain/model/transformer/parameter_list.h"

#include <numeric>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::model {

using param::ParameterId;
using param::ParameterKind;

void check_divides(std::int64_t tp, std::string_view flag, std::int64_t size) {
  if (size % tp == 0) return;
  base::fail(base::ErrorKind::usage, "--tp {} does not divide {} {}: use a --tp that does", tp,
             flag, size);
}

TensorPart part_of(const TensorCoordinate& place, std::string_view flag, std::int64_t size) {
  if (size >= place.size) return place.part_of(size);
  base::fail(base::ErrorKind::usage, "--tp {} is above {} {}: use at most {} ranks", place.size,
             flag, size, size);
}

VocabularySlice vocabulary_of(std::int64_t vocab, const TensorCoordinate& place) {
  if (!place.splits_vocab) return {.whole = vocab, .size = vocab};
  const TensorPart rows = part_of(place, "--vocab", vocab);
  return {.whole = vocab, .size = rows.count, .first = rows.begin};
}

ParameterId ParameterList::add(std::string name, ParameterKind kind,
                               std::vector<std::int64_t> shape) {
  std::vector<std::int64_t> order(shape.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const bool is_constant = kind == ParameterKind::norm || kind == ParameterKind::bias;
  specs_.push_back({.name = std::move(name),
                    .shape = shape,
                    .export_view = std::move(shape),
                    .export_order = std::move(order),
                    .init_stddev = is_constant ? 0 : stddev_,
                    .init_mean = kind == ParameterKind::norm ? 1.0 : 0.0,
                    .kind = kind});
  return specs_.end_id() - 1;
}

ParameterId ParameterList::add(std::string name, ParameterKind kind,
                               std::vector<std::int64_t> shape, const HeldRange& held) {
  const ParameterId id = add(std::move(name), kind, std::move(shape));
  param::ParameterSpec& spec = specs_[id];
  std::int64_t& size = spec.shape[static_cast<std::size_t>(held.dim)];
  if (size == held.count) return id;
  spec.cut = param::TensorCut{.dim = held.dim, .begin = held.begin, .whole = size};
  size = held.count;
  return id;
}

}  // namespace dtrain::model
