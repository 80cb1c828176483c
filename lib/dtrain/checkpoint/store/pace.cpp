#include "dtrain/checkpoint/store/pace.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace dtrain::checkpoint::store {

void Pace::spend(std::int64_t bytes) {
  constexpr double kLongestSleep = 0.05;  // seconds
  spent_ += bytes;
  for (;;) {
    if (stop_.stop_requested()) throw Abandoned();
    if (bytes_per_second_ == 0 || (hurry_ != nullptr && *hurry_)) return;
    const double due = static_cast<double>(spent_) / bytes_per_second_;
    const double left = due - base::seconds_since(start_);
    if (left <= 0) return;
    std::this_thread::sleep_for(base::Seconds(std::min(left, kLongestSleep)));
  }
}

}  // namespace dtrain::checkpoint::store
