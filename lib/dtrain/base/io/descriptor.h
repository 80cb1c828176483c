// RAII owner of a file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace dtrain::base {

/// Owns a file descriptor and closes it on destruction; -1: none.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      value_ = other.release();
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  [[nodiscard]] int get() const { return value_; }
  [[nodiscard]] explicit operator bool() const { return value_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(value_, -1); }
  void reset() {
    if (value_ >= 0) ::close(release());
  }

 private:
  int value_ = -1;
};

}  // namespace dtrain::base
