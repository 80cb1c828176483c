#include "dtrain/train/internal/stop_requests.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <optional>
#include <thread>

namespace dtrain::train::stop_requests_test {
namespace {

TEST_CASE("No save request is lost") {
  StopRequests requests({});
  constexpr int kSignals = 300;
  std::atomic<int> sent = 0;
  std::atomic<int> taken = 0;
  std::atomic<bool> has_lost = false;
  std::jthread sender([&] {
    for (int number = 1; number <= kSignals && !has_lost; ++number) {
      ::pthread_kill(::pthread_self(), SIGUSR2);  // handled on return
      sent = number;
      while (taken != number && !has_lost) std::this_thread::yield();
    }
  });
  for (int number = 1; number <= kSignals && !has_lost;) {
    const bool was_sent = sent == number;
    if (requests.take_save_request()) {
      while (sent != number) std::this_thread::yield();
      taken = number++;
    } else if (was_sent) {
      has_lost = true;  // it had been handled before it was asked for
    }
  }
  CHECK_FALSE(has_lost);
}

TEST_CASE("Handlers stay installed when the first of several ranks ends") {
  struct sigaction before {};
  ::sigaction(SIGTERM, nullptr, &before);
  std::optional<StopRequests> first(std::in_place, StopRequests::Options{});
  {
    StopRequests second({});
    first.reset();
    ::raise(SIGTERM);  // would end this process
    CHECK(second.wants_stop());
    CHECK(second.reason(0) == "SIGTERM");
    CHECK(second.reason(SIGHUP) == "SIGHUP");  // a launcher sends SIGTERM whatever it gets
  }
  struct sigaction after {};
  ::sigaction(SIGTERM, nullptr, &after);
  CHECK(after.sa_handler == before.sa_handler);
  StopRequests later({});
  CHECK_FALSE(later.wants_stop());
}

TEST_CASE("A stop request survives the end of another rank") {
  StopRequests second({});
  {
    const StopRequests first({});
    ::raise(SIGUSR1);
  }
  CHECK(second.wants_stop());
}

}  // namespace
}  // namespace dtrain::train::stop_requests_test
