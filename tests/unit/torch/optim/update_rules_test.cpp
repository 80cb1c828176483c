#include "dtrain/optim/internal/update_rules.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "support/values.h"

namespace dtrain::optim::update_rules_test {
namespace {

// More than four of the widest vectors, plus a remainder.
constexpr std::int64_t kCount = 75;

template <typename T>
std::vector<T> numbers(std::int64_t which, double scale) {
  const at::Tensor values = testing::values_of(which, kCount, at::kDouble) * scale;
  const auto* data = values.const_data_ptr<double>();
  std::vector<T> result;
  for (std::int64_t i = 0; i < kCount; ++i) result.push_back(static_cast<T>(data[i]));
  return result;
}

// Weights, gradients and two state arrays; the second is never negative.
template <typename T>
struct Elements {
  std::vector<T> weight = numbers<T>(1, 1e-5);
  std::vector<T> gradient = numbers<T>(2, 3e-6);
  std::vector<T> first = numbers<T>(3, 1e-6);
  std::vector<T> second = squares(numbers<T>(4, 1e-6));

  static std::vector<T> squares(std::vector<T> values) {
    for (T& value : values) value *= value;
    return values;
  }
  [[nodiscard]] bool agrees(const Elements& other, std::int64_t begin, std::int64_t end) const {
    bool same = true;
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      same = same && weight[i] == other.weight[i] && first[i] == other.first[i] &&
             second[i] == other.second[i];
    }
    return same;
  }
};

// Compares updates of every range of the elements, on every instruction set of this CPU, with one
// update of all elements and with a scalar update that the compiler does not vectorize.
template <typename T, typename Update, typename Scalar>
void check_every_range(Update update, Scalar scalar) {
  const Elements<T> start;
  Elements<T> expected = start;
  for (std::size_t i = 0; i < kCount; ++i) scalar(expected, i);
  const InstructionSet set =
      GENERATE(from_range(instruction_sets().begin(), instruction_sets().end()));
  for (std::int64_t begin = 0; begin < kCount; ++begin) {
    for (std::int64_t end = begin + 1; end <= kCount; ++end) {
      Elements<T> found = start;
      update(found, begin, end - begin, set);
      INFO("elements " << begin << " to " << end << " of " << sizeof(T) << " bytes, set "
                       << static_cast<int>(set));
      REQUIRE(found.agrees(expected, begin, end));
      REQUIRE(found.agrees(start, 0, begin));
      REQUIRE(found.agrees(start, end, kCount));
    }
  }
}

TEMPLATE_TEST_CASE("AdamW has the scalar rule's bits in every range", "", float, double) {
  const AdamWFactors<TestType> f{.keep = TestType(0.9997),
                                 .beta1 = TestType(0.9),
                                 .first_gain = TestType(0.1),
                                 .beta2 = TestType(0.999),
                                 .second_gain = TestType(0.001),
                                 .root_scale = TestType(14.3),
                                 .eps = TestType(1e-8),
                                 .rate = TestType(0.0037)};
  check_every_range<TestType>(
      [&](Elements<TestType>& of, std::int64_t begin, std::int64_t count, InstructionSet set) {
        update_adamw(
            AdamWElements<TestType>{count, of.weight.data() + begin, of.gradient.data() + begin,
                                    of.first.data() + begin, of.second.data() + begin},
            f, set);
      },
      [&](Elements<TestType>& of, std::size_t i) {
        const TestType g = of.gradient[i];
        of.first[i] = f.beta1 * of.first[i] + f.first_gain * g;
        of.second[i] = f.beta2 * of.second[i] + f.second_gain * g * g;
        const TestType root = std::sqrt(of.second[i]) * f.root_scale + f.eps;
        of.weight[i] = f.keep * of.weight[i] - f.rate * of.first[i] / root;
      });
}

TEMPLATE_TEST_CASE("SGD has the scalar rule's bits in every range", "", float, double) {
  const bool has_momentum = GENERATE(true, false);
  const SgdFactors<TestType> f{
      .decay = TestType(0.1), .momentum = TestType(0.9), .rate = TestType(0.0037)};
  check_every_range<TestType>(
      [&](Elements<TestType>& of, std::int64_t begin, std::int64_t count, InstructionSet set) {
        update_sgd(
            SgdElements<TestType>{count, of.weight.data() + begin, of.gradient.data() + begin,
                                  has_momentum ? of.first.data() + begin : nullptr},
            f, set);
      },
      [&](Elements<TestType>& of, std::size_t i) {
        const TestType change = of.gradient[i] + f.decay * of.weight[i];
        if (!has_momentum) {
          of.weight[i] = of.weight[i] - f.rate * change;
          return;
        }
        of.first[i] = f.momentum * of.first[i] + change;
        of.weight[i] = of.weight[i] - f.rate * of.first[i];
      });
}

}  // namespace
}  // namespace dtrain::optim::update_rules_test
