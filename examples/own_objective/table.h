// A table of numbers in a text file, and its rows as samples.
//
//   distance,speed,angle            the first line names the columns
//   12.5,10.0,45.0
#pragma once
#include <colossal.h>

#include <memory>
#include <string>
#include <vector>

/// A table in which one column is the target of predictions.
struct Table {
  std::vector<std::string> columns{};         ///< names of the inputs
  std::vector<std::vector<double>> inputs{};  ///< [rows][columns]
  std::vector<double> targets{};              ///< [rows]

  /// Reads a file whose columns `separator` divides. Errors ("data"): it cannot be read, has no column `target` or
  /// fewer than two rows; a line has another number of columns, or words that are no numbers.
  static Table read(const std::string& path, const std::string& target, char separator);
  /// Removes the last rows, a fraction `share` of all but at least one, and returns them.
  Table take_last(double share);
};

/// The mean and the standard deviation of a column.
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

/// Samples of the rows of a table. The fields are `inputs` [B, 1, columns] and `targets` [B, 1], in fp64 and in units
/// of the scales, and `counts` [B, 1], which is 1 for each sample that counts.
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

/// Returns a batch with the fields of TableSamples. On the meta device it has sizes, but no values.
colossal::tensor::Batch table_batch(int64_t rows, int64_t inputs, bool on_meta);
