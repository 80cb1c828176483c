#include "dtrain/checkpoint/store/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

namespace dtrain::checkpoint::store {
namespace {

constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 20;

// A chunk of a tensor's values in one checkpoint.
struct Values {
  format::Dtype dtype;
  std::vector<std::byte> bytes = {};

  void read(Reader& reader, const std::string& tensor, const format::Box& box) {
    const std::int64_t count = format::num_elements(box.sizes);
    bytes.resize(static_cast<std::size_t>(count * format::size_of(dtype)));
    reader.read(tensor, box, bytes);
  }
  [[nodiscard]] std::span<const std::byte> bytes_at(std::int64_t element) const {
    const auto width = static_cast<std::size_t>(format::size_of(dtype));
    return std::span(bytes).subspan(static_cast<std::size_t>(element) * width, width);
  }
  [[nodiscard]] double at(std::int64_t element) const {
    return format::value_at(dtype, bytes_at(element).data());
  }
};

bool are_equal(const Values& a, const Values& b, std::int64_t element) {
  if (a.dtype == b.dtype) return std::ranges::equal(a.bytes_at(element), b.bytes_at(element));
  const double in_a = a.at(element);
  const double in_b = b.at(element);
  return in_a == in_b || (std::isnan(in_a) && std::isnan(in_b));
}

double absolute_difference(double a, double b) {
  if (a == b) return 0;  // includes equal infinities and zeros of either sign
  const double difference = std::abs(a - b);
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

double relative_difference(double a, double b) {
  const double absolute = absolute_difference(a, b);
  if (absolute == 0 || std::isinf(absolute)) return absolute;
  return absolute / std::max(std::abs(a), std::abs(b));
}

// Returns the index in the tensor of a box's element, given its row-major position in the box.
std::vector<std::int64_t> index_of(const format::Box& box, std::int64_t element) {
  std::vector<std::int64_t> index(box.offsets);
  for (std::size_t dim = box.sizes.size(); dim-- > 0;) {
    index[dim] += element % box.sizes[dim];
    element /= box.sizes[dim];
  }
  return index;
}

void compare_box(const Values& a, const Values& b, const format::Box& box,
                 TensorDifference& result) {
  if (a.dtype == b.dtype && a.bytes == b.bytes) return;
  const std::int64_t count = format::num_elements(box.sizes);
  for (std::int64_t element = 0; element < count; ++element) {
    if (are_equal(a, b, element)) continue;
    const double in_a = a.at(element);
    const double in_b = b.at(element);
    if (result.num_elements++ == 0) {
      result.index = index_of(box, element);
      result.value_in_a = in_a;
      result.value_in_b = in_b;
    }
    result.largest_absolute = std::max(result.largest_absolute, absolute_difference(in_a, in_b));
    result.largest_relative = std::max(result.largest_relative, relative_difference(in_a, in_b));
  }
}

std::optional<TensorDifference> compare_tensor(Reader& a, Reader& b, const std::string& tensor) {
  TensorDifference result{.tensor = tensor, .index = {}};
  Values in_a{.dtype = a.find(tensor)->dtype};
  Values in_b{.dtype = b.find(tensor)->dtype};
  const std::vector<std::int64_t>& shape = a.find(tensor)->shape;
  const std::int64_t count = format::num_elements(shape);
  for (std::int64_t begin = 0; begin < count; begin += kElementsAtOnce) {
    const std::int64_t end = std::min(begin + kElementsAtOnce, count);
    for (const format::Box& box : format::boxes_of_run(shape, begin, end)) {
      in_a.read(a, tensor, box);
      in_b.read(b, tensor, box);
      compare_box(in_a, in_b, box, result);
    }
  }
  if (result.num_elements == 0) return std::nullopt;
  return result;
}

std::vector<std::string> names_missing_in(const Reader& other, const Reader& reader) {
  std::vector<std::string> names;
  for (const auto& [name, info] : reader.manifest().contents.tensors) {
    if (other.find(name) == nullptr) names.push_back(name);
  }
  return names;
}

}  // namespace

Comparison compare(Reader& a, Reader& b) {
  Comparison result;
  result.only_in_a = names_missing_in(b, a);
  result.only_in_b = names_missing_in(a, b);
  for (const auto& [name, info] : a.manifest().contents.tensors) {
    const format::TensorInfo* other = b.find(name);
    if (other == nullptr) continue;
    ++result.num_tensors;
    if (other->shape != info.shape) {
      result.of_other_shape.push_back(name);
    } else if (auto difference = compare_tensor(a, b, name)) {
      result.differences.push_back(std::move(*difference));
    }
  }
  return result;
}

}  // namespace dtrain::checkpoint::store
