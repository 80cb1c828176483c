// Strongly typed ids, and containers indexed by one kind of id only.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace dtrain::base {

/// An id, counted from 0. `Tag` distinguishes kinds of ids.
template <typename Tag>
class Index {
 public:
  constexpr Index() = default;
  constexpr explicit Index(std::int64_t value) : value_(value) {}

  [[nodiscard]] constexpr std::int64_t value() const { return value_; }

  constexpr Index& operator++() { return *this = *this + 1; }
  constexpr Index& operator--() { return *this = *this - 1; }
  constexpr auto operator<=>(const Index&) const = default;
  friend constexpr Index operator+(Index id, std::int64_t n) { return Index(id.value_ + n); }
  friend constexpr Index operator-(Index id, std::int64_t n) { return Index(id.value_ - n); }
  friend constexpr std::int64_t operator-(Index a, Index b) { return a.value_ - b.value_; }

 private:
  std::int64_t value_ = 0;
};

/// The ids in [begin, end).
template <typename Id>
class IndexRange {
 public:
  class Iterator {
   public:
    constexpr explicit Iterator(Id id) : id_(id) {}
    constexpr Id operator*() const { return id_; }
    constexpr Iterator& operator++() { return ++id_, *this; }
    constexpr bool operator==(const Iterator&) const = default;

   private:
    Id id_;
  };

  constexpr IndexRange(Id begin, Id end) : begin_(begin), end_(end) {}
  [[nodiscard]] constexpr Iterator begin() const { return Iterator(begin_); }
  [[nodiscard]] constexpr Iterator end() const { return Iterator(end_); }
  [[nodiscard]] constexpr Id front() const { return begin_; }
  [[nodiscard]] constexpr std::int64_t size() const { return end_ - begin_; }

 private:
  Id begin_;
  Id end_;
};

/// The ids 0 to count - 1.
template <typename Id>
[[nodiscard]] constexpr IndexRange<Id> first_ids(std::int64_t count) {
  return {Id(0), Id(count)};
}

/// A std::vector with one element for each id.
///
/// Throws: std::out_of_range for an id without an element.
template <typename Id, typename T>
class IndexedVector {
 public:
  IndexedVector() = default;
  IndexedVector(std::initializer_list<T> values) : values_(values) {}
  explicit IndexedVector(std::vector<T> values) : values_(std::move(values)) {}
  explicit IndexedVector(std::int64_t count) : values_(static_cast<std::size_t>(count)) {}
  IndexedVector(std::int64_t count, const T& value)
      : values_(static_cast<std::size_t>(count), value) {}

  decltype(auto) operator[](Id id) { return values_.at(static_cast<std::size_t>(id.value())); }
  decltype(auto) operator[](Id id) const {
    return values_.at(static_cast<std::size_t>(id.value()));
  }
  [[nodiscard]] std::int64_t size() const { return std::ssize(values_); }
  [[nodiscard]] bool empty() const { return values_.empty(); }
  [[nodiscard]] IndexRange<Id> ids() const { return first_ids<Id>(size()); }
  /// The id of the next element to be added.
  [[nodiscard]] Id end_id() const { return Id(size()); }
  void push_back(T value) { values_.push_back(std::move(value)); }
  [[nodiscard]] const std::vector<T>& values() const { return values_; }

  decltype(auto) front() { return values_.front(); }
  decltype(auto) front() const { return values_.front(); }
  decltype(auto) back() { return values_.back(); }
  decltype(auto) back() const { return values_.back(); }
  auto begin() { return values_.begin(); }
  auto begin() const { return values_.begin(); }
  auto end() { return values_.end(); }
  auto end() const { return values_.end(); }
  bool operator==(const IndexedVector&) const = default;

 private:
  std::vector<T> values_;
};

}  // namespace dtrain::base
