#include "table.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "colossal/base/json.h"

namespace tensor = colossal::tensor;
using colossal::concat;
using colossal::require;
using tensor::Dim;

namespace {

std::vector<std::string> words_of(const std::string& line, char separator) {
  std::vector<std::string> words;
  std::istringstream rest(line);
  for (std::string word; std::getline(rest, word, separator);) words.push_back(word);
  return words;
}

double number_of(const std::string& word, const std::string& where) {
  char* end = nullptr;
  const double number = std::strtod(word.c_str(), &end);
  require(!word.empty() && end == word.c_str() + word.size() && std::isfinite(number), "data", where,
          ": a table must have numbers between its separators: got `", word, "`; set data.separator");
  return number;
}

}  // namespace

Table Table::read(const std::string& path, const std::string& target, char separator) {
  std::ifstream file(path);
  std::string line;
  require(static_cast<bool>(std::getline(file, line)), "data", "the table cannot be read: ", path,
          "; name a file of numbers with --data.path=PATH");
  Table table{.columns = words_of(line, separator)};
  const auto found = std::find(table.columns.begin(), table.columns.end(), target);
  require(found != table.columns.end(), "data", "the first line of ", path, " must name the column ", target, ": got ",
          line, "; set regression.target, or data.separator if another character divides the columns");
  const auto column = found - table.columns.begin();
  const size_t columns = table.columns.size();
  table.columns.erase(found);
  for (int64_t number = 2; std::getline(file, line); ++number) {
    const std::string where = concat(path, ":", number);
    const std::vector<std::string> words = words_of(line, separator);
    require(words.size() == columns, "data", where, ": a line must have ", columns, " numbers: got ", words.size());
    std::vector<double> row;
    for (const std::string& word : words) row.push_back(number_of(word, where));
    table.targets.push_back(row[column]);
    row.erase(row.begin() + column);
    table.inputs.push_back(std::move(row));
  }
  require(table.targets.size() >= 2, "data", "a table must have at least two rows of numbers: got ",
          table.targets.size(), " in ", path);
  return table;
}

Table Table::take_last(double share) {
  const auto rows = static_cast<int64_t>(targets.size());
  const int64_t kept = std::clamp<int64_t>(std::llround(static_cast<double>(rows) * (1 - share)), 1, rows - 1);
  Table last{columns, {inputs.begin() + kept, inputs.end()}, {targets.begin() + kept, targets.end()}};
  inputs.resize(kept);
  targets.resize(kept);
  return last;
}

Scale Scale::of(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  for (const double value : values) squares += (value - sum / count) * (value - sum / count);
  const double deviation = std::sqrt(squares / count);
  return {sum / count, deviation > 0 ? deviation : 1};
}

Scales Scales::of(const Table& table) {
  Scales scales{{}, Scale::of(table.targets)};
  for (size_t column = 0; column < table.columns.size(); ++column) {
    std::vector<double> values;
    for (const std::vector<double>& row : table.inputs) values.push_back(row[column]);
    scales.inputs.push_back(Scale::of(values));
  }
  return scales;
}

tensor::Batch table_batch(int64_t rows, int64_t inputs, bool on_meta) {
  const auto numbers = at::TensorOptions().dtype(at::kDouble).device(on_meta ? at::kMeta : at::kCPU);
  tensor::Batch batch;
  batch.add("inputs", {at::zeros({rows, 1, inputs}, numbers), {Dim::Row, Dim::Other, Dim::Feature}});
  batch.add("targets", {at::zeros({rows, 1}, numbers), {Dim::Row, Dim::Other}});
  batch.add("counts", {at::zeros({rows, 1}, numbers), {Dim::Row, Dim::Other}, /*ignored=*/0});
  return batch;
}

TableSamples::TableSamples(Table table, Scales scales) : table_(std::move(table)), scales_(std::move(scales)) {}

tensor::Batch TableSamples::make(int64_t rows) const {
  return table_batch(rows, static_cast<int64_t>(table_.columns.size()), false);
}

void TableSamples::fill(int64_t index, uint64_t, tensor::Batch& batch, int64_t row) const {
  const std::vector<double>& from = table_.inputs.at(index);
  double* to = batch.at("inputs").mutable_data_ptr<double>() + row * static_cast<int64_t>(from.size());
  for (size_t column = 0; column < from.size(); ++column) to[column] = scales_.inputs[column].of_value(from[column]);
  batch.at("targets").mutable_data_ptr<double>()[row] = scales_.target.of_value(table_.targets.at(index));
  batch.at("counts").mutable_data_ptr<double>()[row] = 1;
}

nlohmann::json TableSamples::traits() const {
  return {{"rows", table_.targets.size()},
          {"mean of the target", scales_.target.mean},
          {"deviation of the target", scales_.target.deviation}};
}
