#include "dtrain/kernels/product_rate.h"

#include <algorithm>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/kernels/product.h"
#include "dtrain/kernels/tasks.h"

namespace dtrain::kernels {
namespace {

constexpr std::int64_t kSize = 256;  // rows and columns
constexpr std::int64_t kProducts = 4;

template <typename T>
class Work {
 public:
  // One thread's products, over and over into the same memory.
  void run() {
    for (std::int64_t i = 0; i < kProducts; ++i) {
      product_.write({a_.data(), kSize, kSize}, {b_.data(), kSize, kSize},
                     {c_.data(), kSize, kSize});
    }
  }

 private:
  static constexpr auto kElements = static_cast<std::size_t>(kSize * kSize);
  Product<T> product_;
  std::vector<T> a_ = std::vector<T>(kElements, T(0.5F));
  std::vector<T> b_ = std::vector<T>(kElements, T(0.5F));
  std::vector<typename SumOf<T>::Type> c_ = std::vector<typename SumOf<T>::Type>(kElements);
};

template <typename T>
double rate(double seconds) {
  const std::int64_t workers = num_workers();
  std::vector<Work<T>> work(static_cast<std::size_t>(workers));
  const double flops = static_cast<double>(workers * kProducts * 2 * kSize * kSize * kSize);
  double best = 0;
  for (const auto start = base::Clock::now(); base::seconds_since(start) < seconds;) {
    const auto begin = base::Clock::now();
    run_tasks(workers,
              [&](std::int64_t task, std::int64_t) { work[static_cast<std::size_t>(task)].run(); });
    best = std::max(best, flops / base::seconds_since(begin));
  }
  return best;
}

}  // namespace

double product_rate(c10::ScalarType type, double seconds) {
  switch (type) {
    case c10::ScalarType::Float:
      return rate<float>(seconds);
    case c10::ScalarType::Double:
      return rate<double>(seconds);
    case c10::ScalarType::BFloat16:
      return rate<c10::BFloat16>(seconds);
    default:
      return 0;
  }
}

}  // namespace dtrain::kernels
