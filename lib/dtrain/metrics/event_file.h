// RUN/tensorboard: what metrics.jsonl says, for TensorBoard (docs/views.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/metrics/appended_file.h"
#include "dtrain/metrics/event_record.h"

namespace dtrain::metrics {

/// The event file of one start of the program, in a folder with those of earlier starts. A start
/// never changes an older file, which TensorBoard may be reading: a record at the beginning of the
/// new one has readers drop what older ones say of its steps.
///
/// Throws:  Error{data} naming the folder if it cannot be made; as AppendedFile.
/// Threads: one caller.
class EventFile {
 public:
  /// The folder is made, and the file begun, by the first event. first_step: of this start.
  EventFile(std::string folder, std::int64_t first_step);

  void scalars(std::int64_t step, std::span<const Scalar> scalars);
  /// Shown as it is, line by line.
  void text(std::int64_t step, std::string_view tag, std::string_view text);

  /// As AppendedFile::finish.
  void finish();

 private:
  void write(const std::string& record);

  std::string folder_;
  std::int64_t first_step_;
  std::unique_ptr<AppendedFile> file_;  // from the first event on
};

/// Removes the event files that dtrain has written to the folder, and the folder if nothing is
/// left. Files of others stay.
///
/// Throws: Error{data} naming a file that cannot be removed.
void remove_event_files(const std::string& folder);

}  // namespace dtrain::metrics
