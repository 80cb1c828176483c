#include "dtrain/comm/call_ring.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace dtrain::comm {

namespace {

// "bfloat16". LibTorch throws for a dtype without such a name, and callers may be noexcept.
std::string dtype_name(at::ScalarType dtype) {
  try {
    return c10::getDtypeNames(dtype).first;
  } catch (const std::exception&) {
    return c10::toString(dtype);
  }
}

bool is_of_two(const CallRecord& call) { return call.op == "send" || call.op == "recv"; }

/// The state that dtrun receives. A queued call has not reached the other ranks.
std::string_view state_word(CallState state) {
  if (state == CallState::queued) return "queued";
  return state == CallState::done ? "ended" : "open";
}

}  // namespace

std::string describe(const CallRecord& record) {
  if (record.op == "barrier") return fmt::format("call {}, {}", record.number, record.op);
  const auto bytes = record.count * static_cast<std::int64_t>(c10::elementSize(record.dtype));
  return fmt::format("call {}, {} of {} {} ({} bytes)", record.number, record.op, record.count,
                     dtype_name(record.dtype), bytes);
}

std::string call_line(const std::vector<CallRecord>& records, std::string_view group,
                      std::int64_t awaited) {
  if (records.empty()) return fmt::format("call 0 none 0 ended 0 -1 {}\n", group);
  const auto is_open = [](const CallRecord& record) { return record.state != CallState::done; };
  const auto open = std::ranges::find_if(records, is_open);
  const CallRecord& call = open == records.end() ? records.back() : *open;
  const std::int64_t bytes = call.count * static_cast<std::int64_t>(c10::elementSize(call.dtype));
  const std::int64_t other = call.peer >= 0 && is_of_two(call) ? call.peer : awaited;
  return fmt::format("call {} {} {} {} {:.3f} {} {}\n", call.number, call.op, bytes,
                     state_word(call.state), base::seconds_since(call.queued),
                     is_open(call) ? other : -1, group);
}

std::uint64_t CallRing::add(const CallRecord& call) {
  const std::lock_guard lock(mutex_);
  const auto number = static_cast<std::uint64_t>(++counters_.calls);
  CallRecord& record = records_[number % kCapacity];
  record = call;
  record.number = number;
  record.queued = base::Clock::now();
  record.state = CallState::queued;
  return number;
}

CallRecord* CallRing::find(std::uint64_t number) {
  CallRecord& record = records_[number % kCapacity];
  return record.number == number ? &record : nullptr;  // null: overwritten by a later call
}

void CallRing::start(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (CallRecord* record = find(number)) {
    record->started = base::Clock::now();
    record->state = CallState::running;
  }
}

void CallRing::finish(std::uint64_t number, std::int64_t bytes_sent) {
  const std::lock_guard lock(mutex_);
  counters_.bytes_sent += bytes_sent;
  if (CallRecord* record = find(number)) {
    record->ended = base::Clock::now();
    record->bytes_sent = bytes_sent;
    record->state = CallState::done;
    keep(*record);
  } else if (keep_capacity_ > 0) {
    ++kept_.num_lost;
  }
}

void CallRing::fail(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (CallRecord* record = find(number)) {
    record->ended = base::Clock::now();
    record->state = CallState::failed;
  }
}

void CallRing::add_wait(base::Seconds waited) {
  const std::lock_guard lock(mutex_);
  counters_.wait_seconds += waited.count();
}

void CallRing::keep(const CallRecord& record) {
  if (keep_capacity_ == 0) return;
  if (kept_.records.size() < keep_capacity_) {
    CallRecord& kept = kept_.records.emplace_back(record);
    // A device may report only the end.
    kept.started = std::max(kept.started, kept.queued);
  } else {
    ++kept_.num_lost;
  }
}

void CallRing::begin_keeping(std::size_t capacity) {
  const std::lock_guard lock(mutex_);
  kept_ = {.records = {}, .counters = counters_};
  kept_.records.reserve(capacity);
  keep_capacity_ = capacity;
}

KeptCalls CallRing::end_keeping() {
  const std::lock_guard lock(mutex_);
  keep_capacity_ = 0;
  KeptCalls kept = std::exchange(kept_, {});
  kept.counters = {.calls = counters_.calls - kept.counters.calls,
                   .bytes_sent = counters_.bytes_sent - kept.counters.bytes_sent,
                   .wait_seconds = counters_.wait_seconds - kept.counters.wait_seconds};
  return kept;
}

CallCounters CallRing::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

std::vector<CallRecord> CallRing::records() const {
  const std::lock_guard lock(mutex_);
  const auto last = static_cast<std::uint64_t>(counters_.calls);
  const auto kept = std::min<std::uint64_t>(last, kCapacity);
  std::vector<CallRecord> result;
  result.reserve(kept);
  for (auto number = last - kept + 1; number <= last; ++number) {
    result.push_back(records_[number % kCapacity]);
  }
  return result;
}

}  // namespace dtrain::comm
