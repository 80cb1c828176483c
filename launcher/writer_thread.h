// Parts that the output-writing threads share.
#pragma once

#include <functional>
#include <string_view>

#include "dtrain/base/descriptor.h"

namespace launcher {

/// Runs `body` in a thread that nobody waits for: it may hang in the kernel, so what it uses must
/// live as long as it does.
///
/// Throws: Error{spawn} when no thread can be made.
void start_writer_thread(std::function<void()> body);

/// The most that is written at once; with `atomic`, whole lines in as many bytes as a pipe takes
/// without letting another writer's between them.
enum class Pieces { large, atomic };

/// Writes a piece from the front of `rest` and takes off what was written.
///
/// Returns: 0, or why nothing could be written.
[[nodiscard]] int write_piece(int fd, std::string_view& rest, Pieces pieces = Pieces::large);

/// Makes an eventfd readable. Its descriptor is a duplicate, which stays good after the owner of
/// the first has closed that.
class Waker {
 public:
  Waker() = default;
  explicit Waker(int eventfd);

  void wake() const;

 private:
  dtrain::base::Descriptor fd_;
};

}  // namespace launcher
