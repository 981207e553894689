// Records of several sources, each drawn as often as its weight says.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "colossal/data/record_source.h"

namespace colossal::data {

/// One source of a data stream.
struct StreamSource {
  std::string name;
  double weight = 1;                          ///< the share of its records among all, times the sum of all weights
  std::vector<std::string> paths{}, names{};  ///< of its files; names are those that stay where the folder moves
  std::optional<std::string> left_out{};      ///< a line for the log about files of the folder that are not read

  /// The files of JSON lines that `path`, a file or a folder, names. Errors ("data"): none, a weight that is not a
  /// positive number, a name that is not UTF-8.
  static StreamSource open(const std::string& name, const std::string& path, double weight);
  /// The size and a checksum of each file, by name, for people; of more than 1000 only their number and one checksum.
  nlohmann::json contents() const;
};

struct MixPosition {
  int64_t records = 0;
  std::map<std::string, SourcePosition> sources;  ///< by name
  nlohmann::json encode() const;
  /// Errors: position_number()'s.
  static MixPosition decode(const nlohmann::json& state);
};

/// Record n comes from a source that follows from (seed, n) and the names and weights alone: the order in which the
/// sources are given does not matter.
/// Thread safety: one thread calls the members.
class RecordMix {
 public:
  /// Errors ("data"): no sources, two of one name; RecordSource's.
  RecordMix(const std::vector<StreamSource>& sources, const RecordOptions& options);
  /// Errors: RecordSource's.
  Record next();
  MixPosition position() const;
  /// Errors ("data"): a position of other sources; RecordSource's.
  void seek(const MixPosition& position);
  std::vector<std::string> take_faults();

 private:
  uint64_t seed_;
  int64_t records_ = 0;
  std::vector<double> ends_;  // of each source's part of [0, 1)
  std::vector<std::string> names_;
  std::vector<RecordSource> sources_;  // in the order of their names
};

}  // namespace colossal::data
