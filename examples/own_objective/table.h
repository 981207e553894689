// A table of numbers in a text file, and its rows as samples.
//
//   distance,speed,angle            the first line names the columns
//   12.5,10.0,45.0
#pragma once
#include <colossal.h>

#include <memory>
#include <string>
#include <vector>

/// A table with one column that is to be predicted.
struct Table {
  std::vector<std::string> columns{};         ///< names of the inputs
  std::vector<std::vector<double>> inputs{};  ///< [rows][columns]
  std::vector<double> targets{};              ///< [rows]

  /// Reads a file. Errors ("data"): one that cannot be read, no column of that name, a line with other columns or with
  /// words that are no numbers, fewer than two rows.
  static Table read(const std::string& path, const std::string& target);
  /// Takes the last `share` of the rows away, at least one, and returns them.
  Table take_last(double share);
};

/// Mean and deviation of a column.
struct Scale {
  double mean = 0, deviation = 1;
  static Scale of(const std::vector<double>& values);
  double of_value(double value) const { return (value - mean) / deviation; }
};

/// The scales of all columns of a table.
struct Scales {
  std::vector<Scale> inputs;
  Scale target;
  static Scales of(const Table& table);
};

/// Fields of a sample, in units of the scales: `inputs` [B, 1, columns] and `targets` [B, 1], in fp64, and `counts`
/// [B, 1], 1 for each sample that counts.
class TableSamples : public colossal::data::Samples {
 public:
  TableSamples(Table table, Scales scales);
  int64_t count() const override { return static_cast<int64_t>(table_.targets.size()); }
  colossal::tensor::Batch make(int64_t rows) const override;
  void fill(int64_t index, uint64_t seed, colossal::tensor::Batch& batch, int64_t row) const override;
  nlohmann::json traits() const override;

 private:
  Table table_;
  Scales scales_;
};

/// A batch with these fields. On meta it has sizes alone.
colossal::tensor::Batch table_batch(int64_t rows, int64_t inputs, bool on_meta);
