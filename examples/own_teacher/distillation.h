// The objective of distillation: a student learns a text, and the probabilities that a frozen teacher gives to it.
#pragma once
#include <colossal.h>

/// The table [distill] of the config. The table [teacher] names the teacher.
struct DistillKeys {
  double share = 0.5;  ///< of the teacher in the loss
  void fields(colossal::Fields& f);
  bool operator==(const DistillKeys&) const = default;
};

/// Returns the row of the objective: its two tables, its further model, and its step rule.
colossal::run::ObjectiveRow distillation();
