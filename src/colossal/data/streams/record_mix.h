// Records of several sources, drawn in proportion to the weights of the sources.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "colossal/data/streams/record_source.h"

namespace colossal::data {

/// One source of a data stream.
struct StreamSource {
  std::string name;
  double weight = 1;                          ///< weight / sum of all weights = share of its records among all
  std::vector<std::string> paths{}, names{};  ///< paths of its files, and names that do not change if the folder moves
  std::optional<std::string> left_out{};      ///< a line for the log about files of the folder that are not read

  /// Finds the record files (JSON lines and Parquet) of `path`, a file or a folder. Errors ("data"): there are none;
  /// the weight is not a positive number; a name is not UTF-8.
  static StreamSource open(const std::string& name, const std::string& path, double weight);
  /// Returns the size and a checksum of each file, by name, for people. More than 1000 files give only their number and
  /// one checksum.
  nlohmann::json contents() const;
};

/// The position of a RecordMix.
struct MixPosition {
  int64_t records = 0;                            ///< number of records that were returned
  std::map<std::string, SourcePosition> sources;  ///< positions of the sources, by name
  int64_t epochs() const;                         ///< sum of the epochs of the sources
  int64_t whole_epochs() const;                   ///< the smallest epoch of a source
  nlohmann::json encode() const;
  /// Errors: the same as position_number().
  static MixPosition decode(const nlohmann::json& state);
};

/// An endless stream of records from several sources. The source of record n is a function of (seed, n) and the names
/// and weights of the sources. The order of `sources` does not matter.
/// Thread safety: one thread calls the members.
class RecordMix {
 public:
  /// Errors ("data"): there are no sources, or two have the same name; the same as RecordSource.
  RecordMix(const std::vector<StreamSource>& sources, const RecordOptions& options);
  /// Returns the next record. Errors: the same as RecordSource::next().
  Record next();
  MixPosition position() const;
  /// Moves to a position. Errors ("data"): the position has other sources; the same as RecordSource::seek().
  void seek(const MixPosition& position);
  /// Returns the messages of RecordSource::take_faults() of all sources.
  std::vector<std::string> take_faults();

 private:
  uint64_t seed_;
  int64_t records_ = 0;
  std::vector<double> ends_;  // for each source, the end of its range in [0, 1)
  std::vector<std::string> names_;
  std::vector<RecordSource> sources_;  // sources in the order of their names
};

}  // namespace colossal::data
