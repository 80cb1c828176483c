// Writes TensorBoard event files to RUN/tensorboard (docs/guide/views.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/metrics/metrics_file.h"

namespace dtrain::metrics {

/// A point of a curve.
struct Scalar {
  std::string_view tag;  ///< the curve's name; TensorBoard groups curves by the part before "/"
  double value = 0;      ///< written as float32, TensorBoard's own precision
};

/// Wall time and step of an event.
struct EventTime {
  double wall_seconds = 0;  ///< since 1970, UTC
  std::int64_t step = 0;
};

/// The first record of a file.
[[nodiscard]] std::string version_record(double wall_seconds);

/// The record that begins a launch whose first step is `at.step`: it makes readers discard this
/// step and later steps of earlier files.
[[nodiscard]] std::string start_record(const EventTime& at);

[[nodiscard]] std::string scalars_record(const EventTime& at, std::span<const Scalar> scalars);

/// A text, which TensorBoard shows as Markdown.
[[nodiscard]] std::string text_record(const EventTime& at, std::string_view tag,
                                      std::string_view text);

/// CRC-32C (Castagnoli).
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);

/// The event file of one launch, in a folder with the files of earlier launches. TensorBoard may be
/// reading older files, so a launch never changes them: the new file begins with a record that
/// makes readers discard the older files' entries for its steps.
///
/// Throws:  Error{data} naming the folder if it cannot be created; as AppendedFile.
/// Threads: one caller.
class EventFile {
 public:
  /// The first event creates the folder and the file. first_step: first step of this launch.
  EventFile(std::string folder, std::int64_t first_step);

  void scalars(std::int64_t step, std::span<const Scalar> scalars);
  /// TensorBoard shows the text verbatim, line by line.
  void text(std::int64_t step, std::string_view tag, std::string_view text);

  /// As AppendedFile::finish.
  void finish();

 private:
  void write(const std::string& record);

  std::string folder_;
  std::int64_t first_step_;
  std::unique_ptr<AppendedFile> file_;  // from the first event on
};

/// Removes dtrain's event files from the folder, and the folder if it is then empty.
///
/// Throws: Error{data} naming a file that cannot be removed.
void remove_event_files(const std::string& folder);

}  // namespace dtrain::metrics
