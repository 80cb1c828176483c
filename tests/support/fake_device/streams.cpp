#include "support/fake_device/streams.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "support/fake_device/fake_device.h"
#include "support/fake_device/faults.h"
#include "support/fake_device/operators/access.h"

namespace dtrain::testing::fake {

namespace {

constexpr std::chrono::milliseconds kPatience{50};

std::exception_ptr run(const std::function<void()>& task, int threads) {
  if (at::get_num_threads() != threads) at::set_num_threads(threads);  // sums depend on it
  try {
    task();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

Streams::Streams() {
  for (c10::DeviceIndex device = 0; device < kDevices; ++device) (void)create(device);
}

StreamNumber Streams::create(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  auto stream = std::make_unique<Stream>();
  stream->number = streams_.size();
  stream->device = device;
  stream->turn = device_at(device).num_streams++;
  streams_.push_back(std::move(stream));
  return streams_.back()->number;
}

c10::DeviceIndex Streams::device_of(StreamNumber stream) const {
  const std::lock_guard lock(mutex_);
  return streams_.at(stream)->device;
}

Clock* Streams::queue_of(const Stream& stream) {
  std::vector<Clock>& queues = device_at(stream.device).queues;
  return queues.empty() ? nullptr : &queues[stream.turn % queues.size()];
}

Ticket Streams::take(StreamNumber stream) {
  const std::lock_guard lock(mutex_);
  Stream& own = *streams_.at(stream);
  check_launch(own.device);
  own.launched.join(host_);
  Ticket ticket{.stream = stream,
                .tick = own.launched.of(stream) + 1,
                .before = own.launched,
                .in_front = {}};
  own.launched.raise(stream, ticket.tick);
  if (Clock* const queue = queue_of(own)) {
    ticket.in_front = *queue;
    queue->raise(stream, ticket.tick);
  }
  change_counters(own.device, [](Counters& all) { ++all.kernels; });
  return ticket;
}

void Streams::finish(const Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  streams_[ticket.stream]->done = ticket.tick;
  changed_.notify_all();
}

void Streams::submit(const Ticket& ticket, Task task) {
  const int threads = at::get_num_threads();
  const std::lock_guard lock(mutex_);
  Stream& own = *streams_[ticket.stream];
  change_counters(own.device, [](Counters& all) { ++all.late_kernels; });
  const auto behind = std::ranges::upper_bound(own.queue, ticket.tick, {},
                                               [](const Queued& q) { return q.ticket.tick; });
  own.queue.insert(behind, {.ticket = ticket,  // another host thread may have overtaken this one
                            .task = std::move(task),
                            .threads = threads,
                            .since = std::chrono::steady_clock::now()});
  if (!std::exchange(own.has_worker, true)) std::thread([this, &own] { work(own); }).detach();
  changed_.notify_all();
}

Clock Streams::launched(StreamNumber stream) const {
  const std::lock_guard lock(mutex_);
  Clock clock = streams_.at(stream)->launched;
  clock.join(host_);
  return clock;
}

Clock Streams::launched_on(c10::DeviceIndex device) const {
  const std::lock_guard lock(mutex_);
  Clock clock;
  for (const auto& stream : streams_) {
    if (stream->device == device) clock.join(stream->launched);
  }
  return clock;
}

Clock Streams::known_to_host() const {
  const std::lock_guard lock(mutex_);
  return host_;
}

void Streams::order(StreamNumber stream, const Clock& clock) {
  const std::lock_guard lock(mutex_);
  Stream& own = *streams_.at(stream);
  own.launched.join(clock);
  if (Clock* const queue = queue_of(own)) queue->join(clock);
}

bool Streams::has_run_locked(const Clock& clock) const {
  for (StreamNumber stream = 0; stream < clock.size(); ++stream) {
    if (streams_[stream]->done < clock.of(stream)) return false;
  }
  return true;
}

bool Streams::has_run(const Clock& clock) const {
  const std::lock_guard lock(mutex_);
  return has_run_locked(clock);
}

bool Streams::is_awaited(c10::DeviceIndex device) const {
  for (const Clock* clock : awaited_) {
    for (StreamNumber stream = 0; stream < clock->size(); ++stream) {
      if (streams_[stream]->device == device && streams_[stream]->done < clock->of(stream)) {
        return true;
      }
    }
  }
  return false;
}

void Streams::wait(const Clock& clock) {
  std::unique_lock lock(mutex_);
  if (has_run_locked(clock)) return;
  const auto own = awaited_.insert(awaited_.end(), &clock);
  changed_.notify_all();
  changed_.wait(lock, [&] { return has_run_locked(clock); });
  awaited_.erase(own);
}

void Streams::learn(const Clock& clock) {
  wait(clock);
  const std::lock_guard lock(mutex_);
  host_.join(clock);
  release_copies(host_);
}

void Streams::synchronise(const Clock& clock, c10::DeviceIndex device, Cause cause) {
  change_counters(device, [&](Counters& all) { ++(all.host_waits.*cause); });
  learn(clock);
  check_device(device);
  const std::lock_guard lock(mutex_);
  if (const auto error = std::exchange(device_at(device).error, nullptr)) {
    std::rethrow_exception(error);
  }
  TORCH_CHECK(!options_.races_are_errors || races_.empty(), races_.front());
}

void Streams::set_options(const Options& options) {
  const std::lock_guard lock(mutex_);
  options_ = options;
  for (c10::DeviceIndex index = 0; index < kDevices; ++index) {
    Device& device = device_at(index);
    device.random.seed(options.seed + static_cast<std::uint64_t>(index));
    device.num_streams = 1;  // the default one is there
    device.queues.assign(options.queues, {});
  }
  changed_.notify_all();
}

Options Streams::options() const {
  const std::lock_guard lock(mutex_);
  return options_;
}

void Streams::report_race(std::string race) {
  const std::lock_guard lock(mutex_);
  races_.push_back(std::move(race));
}

std::vector<std::string> Streams::take_races() {
  const std::lock_guard lock(mutex_);
  return std::exchange(races_, {});
}

bool Streams::may_run(const Stream& stream, bool is_awaited) const {
  if (stream.queue.empty()) return false;
  const Queued& head = stream.queue.front();
  if (!has_run_locked(head.ticket.before) || !has_run_locked(head.ticket.in_front)) return false;
  return options_.execution == Execution::prompt || is_awaited ||
         std::chrono::steady_clock::now() - head.since > kPatience;
}

void Streams::choose(c10::DeviceIndex index) {
  Device& device = device_at(index);
  if (device.turn != nullptr) return;
  const bool awaited = is_awaited(index);
  std::vector<Stream*> ready;
  for (const auto& stream : streams_) {
    if (stream->device == index && may_run(*stream, awaited)) ready.push_back(stream.get());
  }
  if (ready.empty()) return;
  device.turn = ready[device.random() % ready.size()];
  changed_.notify_all();
}

std::optional<Streams::Queued> Streams::next_task(Stream& stream,
                                                  std::unique_lock<std::mutex>& lock) {
  Device& device = device_at(stream.device);
  const auto since = std::chrono::steady_clock::now();
  for (;;) {
    choose(stream.device);
    if (device.turn == &stream) break;
    changed_.wait_for(lock, kPatience);
    const bool is_idle = std::chrono::steady_clock::now() - since > kPatience;
    if (is_idle && stream.queue.empty()) return std::nullopt;
  }
  Queued next = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (next.task.may_wait) device.turn = nullptr;
  changed_.notify_all();
  return next;
}

void Streams::work(Stream& stream) {
  const at::AutoDispatchBelowADInplaceOrView below;
  std::unique_lock lock(mutex_);
  for (;;) {
    std::optional<Queued> next = next_task(stream, lock);
    if (!next) break;
    lock.unlock();
    std::exception_ptr error;
    if (!is_lost(stream.device)) error = run(next->task.run, next->threads);
    next->task.run = nullptr;
    lock.lock();
    Device& device = device_at(stream.device);
    if (device.turn == &stream) device.turn = nullptr;
    if (error && !device.error) device.error = error;
    stream.done = next->ticket.tick;
    changed_.notify_all();
  }
  stream.has_worker = false;
}

Streams& streams() {
  static Streams* const made = new Streams;
  return *made;
}

namespace {

struct Current {
  c10::DeviceIndex device = 0;
  std::array<StreamNumber, kDevices> streams{};

  Current() { std::iota(streams.begin(), streams.end(), StreamNumber{0}); }
};

Current& current() {
  thread_local Current of_this_thread;
  return of_this_thread;
}

StreamNumber& stream_of(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "fake:", int{device}, " does not exist; there are ",
              int{kDevices}, " fake devices");
  return current().streams[static_cast<std::size_t>(device)];
}

}  // namespace

c10::DeviceIndex current_device() { return current().device; }

c10::DeviceIndex exchange_current_device(c10::DeviceIndex device) {
  (void)stream_of(device);
  return std::exchange(current().device, device);
}

StreamNumber current_stream(c10::DeviceIndex device) { return stream_of(device); }

StreamNumber exchange_current_stream(c10::DeviceIndex device, StreamNumber stream) {
  return std::exchange(stream_of(device), stream);
}

}  // namespace dtrain::testing::fake
