#include "colossal/report/run_records.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"

namespace colossal::report {
namespace {

using RecordJson = nlohmann::ordered_json;

constexpr int64_t kMaxRecordsBytes = int64_t{4} << 30;
constexpr int64_t kRanksOfEachStep = 64;  // with more ranks, fewer steps are recorded

std::string dumped(const RecordJson& object) {
  return object.dump(-1, ' ', false, RecordJson::error_handler_t::replace);
}

double microseconds(double seconds) { return std::round(seconds * 1e6) / 1e6; }

StartRecord start_of(const nlohmann::json& object) {
  StartRecord start{.kind = object.at("kind").get<std::string>(),
                    .after = object.at("after").get<int64_t>(),
                    .time = object.at("time").get<double>(),
                    .command = object.at("command").get<std::vector<std::string>>(),
                    .version = object.at("version").get<std::string>(),
                    .revision = object.value("revision", "")};
  for (const auto& axis : object.at("mesh"))
    start.mesh.push_back({axis.at("name").get<std::string>(), axis.at("size").get<int>()});
  for (const auto& fact : object.at("facts"))
    start.facts.emplace_back(fact.at("name").get<std::string>(), fact.at("value").get<std::string>());
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

std::string to_json_line(const StartRecord& start) {
  RecordJson mesh = RecordJson::array(), facts = RecordJson::array();
  for (const MeshAxis& axis : start.mesh) mesh.push_back({{"name", axis.name}, {"size", axis.size}});
  for (const auto& [name, value] : start.facts) facts.push_back({{"name", name}, {"value", value}});
  RecordJson object = {
      {"kind", start.kind},       {"after", start.after}, {"time", start.time}, {"command", start.command},
      {"version", start.version}, {"mesh", mesh},         {"facts", facts}};
  if (!start.revision.empty()) object["revision"] = start.revision;
  return dumped({{"start", object}});
}

std::string to_json_line(const SampleRecord& sample) {
  RecordJson object = {{"step", sample.step}, {"prompt", sample.prompt}, {"text", sample.text}};
  if (!sample.file.empty()) object["file"] = sample.file;
  return dumped({{"sample", std::move(object)}});
}

std::string to_json_line(const RankMetrics& ranks) {
  RecordJson seconds = RecordJson::array();
  for (const double value : ranks.seconds) seconds.push_back(microseconds(value));
  return dumped({{"step", ranks.step}, {"seconds", seconds}, {"peak_bytes", ranks.peak_bytes}});
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
    if (object.contains("start")) {
      history.starts.push_back(start_of(object.at("start")));
      while (!history.samples.empty() && history.samples.back().step > history.starts.back().after)
        history.samples.pop_back();
      return;
    }
    const nlohmann::json& sample = object.at("sample");
    SampleRecord record{sample.at("step").get<int64_t>(), sample.at("prompt").get<std::string>(),
                        sample.at("text").get<std::string>(), sample.value("file", "")};
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
    RankMetrics record{object.at("step").get<int64_t>(), object.at("seconds").get<std::vector<double>>(),
                       object.at("peak_bytes").get<std::vector<int64_t>>()};
    require(record.seconds.size() == record.peak_bytes.size(), "records", "ranks differ in number");
    drop_from(steps, record.step);
    steps.push_back(std::move(record));
  });
  return steps;
}

}  // namespace colossal::report
