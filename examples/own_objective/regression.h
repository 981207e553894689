// The objective of predicting a column of a table: squared errors, and their root mean square at evaluations.
#pragma once
#include <colossal.h>

#include <string>

/// The table [regression] of the config.
struct RegressionKeys {
  std::string target = "distance", unit = "m";
  void fields(colossal::Fields& f);
  bool operator==(const RegressionKeys&) const = default;
};

/// Its keys of [data].
struct TableKeys {
  std::string separator = ",";
  void fields(colossal::Fields& f);
  bool operator==(const TableKeys&) const = default;
};

colossal::run::ObjectiveRow regression();
