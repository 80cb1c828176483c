#include "mpi/engine.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/comm/queued_group.h"

namespace dtrain::mpi {
namespace {

using Cause = comm::TransportFailure::Cause;

// Tests the requests and removes the completed ones.
void advance(Requests& pending) {
  std::erase_if(pending, [](MPI_Request& each) {
    int has_ended = 0;
    check(MPI_Test(&each, &has_ended, MPI_STATUS_IGNORE));
    return has_ended != 0;
  });
}

// Polls eagerly at first; then yields the core.
void pause_after(int idle_polls) {
  constexpr int kEager = 200;
  if (idle_polls < kEager) return std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::microseconds(50));
}

}  // namespace

void check(int code) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw comm::TransportFailure(Cause::gone, {},
                               std::string(text.data(), static_cast<std::size_t>(length)));
}

struct Engine::Call {
  Begin begin;
  Requests pending = {};
  bool has_ended = false;
  std::exception_ptr failure = nullptr;
};

struct Engine::State {
  std::mutex mutex;
  std::condition_variable posted;  // a call was posted, or the engine shuts down
  std::condition_variable ended;   // a call, or MPI_Finalize, has ended
  std::deque<std::shared_ptr<Call>> queue;
  bool is_ending = false;
  bool has_failed = false;
  bool has_finalized = false;

  void serve();
  // Takes the posted calls; waits for one if none is active. Empty optional: shut down.
  std::optional<std::deque<std::shared_ptr<Call>>> take(bool is_idle);
  // Progresses a call; true when it has ended.
  bool advance_to_end(Call& call, bool is_new);
};

auto Engine::State::take(bool is_idle) -> std::optional<std::deque<std::shared_ptr<Call>>> {
  std::unique_lock lock(mutex);
  if (is_idle) posted.wait(lock, [this] { return is_ending || !queue.empty(); });
  if (is_ending && (has_failed || (is_idle && queue.empty()))) return std::nullopt;
  return std::exchange(queue, {});
}

bool Engine::State::advance_to_end(Call& call, bool is_new) {
  std::exception_ptr failure;
  try {
    if (is_new) call.begin(call.pending);
    advance(call.pending);
    if (!call.pending.empty()) return false;
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex);
  call.failure = failure;
  call.has_ended = true;
  has_failed = has_failed || failure != nullptr;
  ended.notify_all();
  return true;
}

void Engine::State::serve() {
  std::list<std::shared_ptr<Call>> active;
  int idle_polls = 0;  // consecutive polls without progress
  while (auto fresh = take(active.empty())) {
    auto has_ended = [&](const auto& call) { return advance_to_end(*call, false); };
    const bool has_moved = std::erase_if(active, has_ended) > 0 || !fresh->empty();
    for (auto& call : *fresh) {
      if (!advance_to_end(*call, true)) active.push_back(std::move(call));
    }
    if (has_moved) idle_polls = 0;
    if (!active.empty()) pause_after(++idle_polls);
  }
  // Leak active calls: MPI may still write into their buffers.
  if (!active.empty()) new std::list<std::shared_ptr<Call>>(std::move(active));
  int is_up = 0;
  MPI_Initialized(&is_up);
  if (is_up != 0 && !has_failed) MPI_Finalize();
  const std::lock_guard lock(mutex);
  has_finalized = true;
  ended.notify_all();
}

Engine::Engine()
    : state_(std::make_shared<State>()), thread_([state = state_] { state->serve(); }) {}

Engine::~Engine() {
  std::unique_lock lock(state_->mutex);
  state_->has_failed = state_->has_failed || std::uncaught_exceptions() > 0;
  state_->is_ending = true;
  state_->posted.notify_all();
  const bool can_wait = !state_->has_failed;
  const bool is_over = can_wait && state_->ended.wait_for(lock, finalize_timeout_,
                                                          [this] { return state_->has_finalized; });
  lock.unlock();
  if (is_over) {
    thread_.join();
  } else {
    thread_.detach();  // it may be blocked in a call that never returns
  }
}

void Engine::run(Begin begin, const base::Deadline& deadline, const std::atomic<bool>& closed) {
  const auto call = std::make_shared<Call>(Call{.begin = std::move(begin)});
  std::unique_lock lock(state_->mutex);
  state_->queue.push_back(call);
  state_->posted.notify_all();
  const auto is_over = [&] { return call->has_ended || closed.load(); };
  while (!is_over() && !deadline.passed()) {  // a suspension (Ctrl-Z) extends the deadline
    state_->ended.wait_until(lock, deadline.end(), is_over);
  }
  if (call->has_ended && !call->failure) return;
  state_->has_failed = true;
  if (call->has_ended) std::rethrow_exception(call->failure);
  const Cause cause = closed.load() ? Cause::closed : Cause::no_answer;
  throw comm::TransportFailure(cause, {}, cause == Cause::closed ? "the group was closed" : "");
}

void Engine::wake() noexcept {
  const std::lock_guard lock(state_->mutex);
  state_->ended.notify_all();
}

}  // namespace dtrain::mpi
