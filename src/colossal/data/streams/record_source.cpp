#include "colossal/data/streams/record_source.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/seed.h"
#include "colossal/data/order.h"
#include "colossal/data/streams/json_lines.h"

namespace colossal::data {

nlohmann::json SourcePosition::encode() const {
  return {{"epoch", epoch},        {"block", block},     {"file", file},
          {"offset", line.offset}, {"line", line.lines}, {"taken", taken}};
}

SourcePosition SourcePosition::decode(const nlohmann::json& state) {
  const auto number = [&](const char* key) { return position_number(state, key); };
  return {.epoch = number("epoch"),
          .block = number("block"),
          .file = number("file"),
          .line = {.offset = number("offset"), .lines = number("line")},
          .taken = number("taken")};
}

std::string Record::place() const { return concat(*path, ":", number); }

int64_t Record::held_bytes() const {
  // A long string is a separate allocation with a terminator, a header and rounding. The constant is the same on every
  // machine, because positions depend on it.
  constexpr int64_t kBeside = 96;
  static_assert(sizeof(Record) + 32 <= kBeside);
  return kBeside + static_cast<int64_t>(line.size());
}

RecordSource::RecordSource(std::vector<std::string> paths, std::vector<std::string> names, const RecordOptions& options)
    : names_(std::move(names)), options_(options) {
  require(!paths.empty() && paths.size() == names_.size(), "data", "a source needs files, each with a name: got ",
          paths.size(), " and ", names_.size());
  for (std::string& path : paths) paths_.push_back(std::make_shared<const std::string>(std::move(path)));
}

void RecordSource::seek(const SourcePosition& position) {
  require(position.file <= static_cast<int64_t>(paths_.size()), "data",
          "the checkpoint's data position is damaged: file ", position.file, " of ", paths_.size());
  position_ = position;
  is_loaded_ = false;
  reader_.reset();
  faults_.clear();
}

int64_t RecordSource::file_of(int64_t place) const {
  if (!options_.shuffle) return place;
  return Order(static_cast<int64_t>(paths_.size()), derive_seed(options_.seed, "files"), position_.epoch)(place);
}

void RecordSource::fault(const std::string& what) {
  if (options_.on_error == OnError::Refuse)
    throw Error("data", concat(what, "; to train without it set data.on_error = \"skip\""));
  faults_.push_back(what);
}

bool RecordSource::is_wanted(const Record& record, int64_t file) const {
  if (options_.part == Part::All) return true;
  const uint64_t draw = derive_seed(derive_seed(0, names_[file]), static_cast<uint64_t>(record.number));
  const bool is_held_out = static_cast<double>(draw >> 11) * 0x1p-53 < options_.held_out;
  return is_held_out == (options_.part == Part::HeldOut);
}

/// Reads the next line of record.path. Returns false if there is none.
bool RecordSource::next_line(Record& record) {
  try {
    if (!reader_) reader_ = RecordLines::open(*record.path, options_.max_line_bytes, behind_.line, options_.columns);
    if (!reader_->next(record.line)) return false;
  } catch (const Error& error) {
    fault(
        concat(*record.path, ":", behind_.line.lines + 1, ": the rest of the file cannot be read: ", error.message()));
    return false;
  }
  behind_.line = reader_->position();
  record.number = behind_.line.lines;
  return true;
}

/// Reads the next line that is a record of this part. Returns false at the end of the epoch.
bool RecordSource::read_line(Record& record) {
  for (; place_ < static_cast<int64_t>(paths_.size()); ++place_, behind_.line = {}, reader_.reset()) {
    const int64_t file = file_of(place_);
    record.path = paths_[file];
    while (next_line(record)) {
      if (reader_->is_cut())
        fault(concat(record.place(), ": a line must have at most ", options_.max_line_bytes,
                     " bytes; raise data.max_line_bytes"));
      else if (const std::string why = reader_->fault(); !why.empty())
        fault(why);
      else if (!is_blank(record.line) && is_wanted(record, file))
        return true;
    }
  }
  return false;
}

void RecordSource::load() {
  block_.clear();
  place_ = position_.file;
  behind_ = position_;
  int64_t bytes = 0;
  const int64_t most = options_.shuffle ? options_.shuffle_bytes : 1;
  const size_t told = faults_.size();
  try {
    for (Record record; bytes < most && read_line(record); record = {}) {
      record.line.shrink_to_fit();  // frees the reserve, because the line grew by doubling
      bytes += record.held_bytes();
      block_.push_back(std::move(record));
    }
  } catch (...) {
    reader_.reset();  // its position is somewhere within the block
    throw;
  }
  if (position_.taken > 0) faults_.resize(told);
  behind_.file = place_;
  behind_.block = position_.block + 1;
  behind_.taken = 0;
  is_loaded_ = true;
}

bool RecordSource::at_end() {
  for (;; position_ = behind_, is_loaded_ = false) {
    if (!is_loaded_) load();
    const auto size = static_cast<int64_t>(block_.size());
    require(position_.taken <= size, "data", "the checkpoint's data position is damaged: record ", position_.taken,
            " of ", size);
    if (position_.taken < size) return false;
    if (size == 0) return true;
  }
}

Record RecordSource::next() {
  if (at_end()) {
    position_ = {.epoch = position_.epoch + 1};
    is_loaded_ = false;
    reader_.reset();
    require(!at_end(), "data", "no records in ", *paths_.front(),
            paths_.size() > 1 ? " and the other files of its source" : "",
            options_.part == Part::HeldOut ? " are held out; raise data.held_out" : "; name others in [data]");
  }
  const uint64_t seed = derive_seed(derive_seed(options_.seed, "blocks"), static_cast<uint64_t>(position_.epoch));
  const int64_t at = position_.taken++;
  if (!options_.shuffle) return block_[at];
  return block_[Order(static_cast<int64_t>(block_.size()), seed, position_.block)(at)];
}

std::vector<std::string> RecordSource::take_faults() { return std::exchange(faults_, {}); }

}  // namespace colossal::data
