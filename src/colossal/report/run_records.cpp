#include "colossal/report/run_records.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"

namespace colossal::report {
namespace {

constexpr int64_t kMaxRecordsBytes = int64_t{4} << 30;
constexpr int64_t kRanksOfEachStep = 64;  // with more ranks, fewer steps are recorded

double microseconds(double seconds) { return std::round(seconds * 1e6) / 1e6; }

StartRecord start_of(const nlohmann::json& object) {
  const auto start = read_stored<StartRecord>(object, "records");
  for (const MeshAxis& axis : start.mesh)
    require(axis.size >= 1 && axis.size <= 1 << 20, "records", "a mesh axis must have 1 to 2^20 ranks: got ",
            axis.size);
  return start;
}

/// Calls `read` with the object of each line, and counts lines that it rejects.
void for_each_record(const std::string& path, DamagedLines& damaged,
                     const std::function<void(const nlohmann::json& object)>& read) {
  const std::string text = read_file(path, kMaxRecordsBytes);
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.empty()) continue;
    try {
      read(parse_json_object(line, "JSON", "records"));
    } catch (const std::exception&) {
      if (damaged.count++ == 0) damaged.first = number;
    }
  }
}

/// Drops the records of `step` and of later steps, because `step` is recorded again.
template <class Record>
void drop_from(std::vector<Record>& records, int64_t step) {
  while (!records.empty() && records.back().step >= step) records.pop_back();
}

/// Terminates a last line that a kill cut short, so that the next record starts on its own line.
void end_last_line(RecordFile& file) {
  std::ifstream written(file.path(), std::ios::binary | std::ios::ate);
  if (!written || written.tellg() <= 0) return;
  written.seekg(-1, std::ios::end);
  if (written.get() != '\n') file.add("\n");
}

}  // namespace

void MeshAxis::fields(Fields& f) {
  f.member("name", name);
  f.member("size", size);
}

void RunFact::fields(Fields& f) {
  f.member("name", name);
  f.member("value", value);
}

void StartRecord::fields(Fields& f) {
  f.member("kind", kind);
  f.member("after", after);
  f.member("time", time);
  f.member("command", command);
  f.member("version", version);
  f.member("mesh", mesh);
  f.member("facts", facts);
  f.optional(revision.empty()).member("revision", revision);
}

void SampleRecord::fields(Fields& f) {
  f.member("step", step);
  f.member("prompt", prompt);
  f.member("text", text);
  f.optional(file.empty()).member("file", file);
}

void RankMetrics::fields(Fields& f) {
  f.member("step", step);
  f.member("seconds", seconds);
  f.member("peak_bytes", peak_bytes);
}

std::string to_json_line(const StartRecord& start) { return json_line({{"start", to_json_object(start)}}); }

std::string to_json_line(const SampleRecord& sample) { return json_line({{"sample", to_json_object(sample)}}); }

std::string to_json_line(const RankMetrics& ranks) {
  RankMetrics rounded = ranks;
  for (double& seconds : rounded.seconds) seconds = microseconds(seconds);
  return json_line(to_json_object(rounded));
}

RunRecorder::RunRecorder(const std::string& history, const std::string& ranks, bool anew)
    : history_(history, "records", anew), ranks_(ranks, "records", anew) {
  end_last_line(history_);
  end_last_line(ranks_);
}

void RunRecorder::write(const StartRecord& start) {
  history_.add(to_json_line(start) + "\n");
  history_.flush();
}

void RunRecorder::write(const SampleRecord& sample) {
  history_.add(to_json_line(sample) + "\n");
  history_.flush();
}

void RunRecorder::write(const RankMetrics& ranks) {
  const int64_t every = std::max<int64_t>(1, static_cast<int64_t>(ranks.seconds.size()) / kRanksOfEachStep);
  if (ranks.step % every != 0) return;
  ranks_.add(to_json_line(ranks) + "\n");
  ranks_.flush();
}

RunHistory read_history(const std::string& path, DamagedLines& damaged) {
  RunHistory history;
  for_each_record(path, damaged, [&](const nlohmann::json& object) {
    if (const auto start = object.find("start"); start != object.end()) {
      history.starts.push_back(start_of(*start));
      while (!history.samples.empty() && history.samples.back().step > history.starts.back().after)
        history.samples.pop_back();
      return;
    }
    auto record = read_stored<SampleRecord>(object.at("sample"), "records");
    const bool is_inside = record.file.starts_with("samples/") && record.file.find('/', 8) == std::string::npos;
    require(record.file.empty() || is_inside, "records", "a sample must be in samples/");
    drop_from(history.samples, record.step + 1);
    std::erase_if(history.samples, [&](const SampleRecord& before) {  // it was recorded again
      return before.step == record.step && before.prompt == record.prompt && before.file == record.file;
    });
    history.samples.push_back(std::move(record));
  });
  return history;
}

std::vector<RankMetrics> read_rank_metrics(const std::string& path, DamagedLines& damaged) {
  std::vector<RankMetrics> steps;
  for_each_record(path, damaged, [&](const nlohmann::json& object) {
    auto record = read_stored<RankMetrics>(object, "records");
    require(record.seconds.size() == record.peak_bytes.size(), "records", "ranks differ in number");
    drop_from(steps, record.step);
    steps.push_back(std::move(record));
  });
  return steps;
}

}  // namespace colossal::report
