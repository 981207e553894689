// The benchmarks of `colossal bench NAME`, and what they share. A new one is a source x.cpp here, its declaration and a
// row in bench.cpp.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "colossal/cli/arguments.h"
#include "colossal/report/plot.h"

namespace colossal::cli {

/// `colossal bench tensor-parallel`: prints a row for each number of ranks and each mode they can form. A mode that the
/// sizes do not fit is one line with the reason under the table. Ranks are threads of this process.
int bench_tensor_parallel(const Arguments& arguments);

/// `colossal bench sequence`: prints a row for each number of ranks and each mode they can form. A mode that the sizes
/// do not fit is one line with the reason under the table. Ranks are threads of this process.
int bench_sequence(const Arguments& arguments);

/// `colossal bench experts`: prints a row for each number of ranks, without and with recomputation of blocks. A number
/// of ranks that the sizes do not fit is one line with the reason under the table. Ranks are threads of this process.
int bench_experts(const Arguments& arguments);

/// `colossal bench diffusion`: prints the elements that all ranks send for each number of ranks above 1 and each mode,
/// beside the formulas. A number of ranks that the sizes do not fit is one line with the reason under the table. Ranks
/// are threads of this process.
int bench_diffusion(const Arguments& arguments);

/// `colossal bench folding`: prints the elements that all ranks send in a block of a folding model for each number of
/// ranks, beside the formulas. It computes on shapes.
int bench_folding(const Arguments& arguments);

/// `colossal bench inference --from FOLDER`: measures tokens per second of prompts and completions, time to the first
/// token, and latencies under load. Prints the limit set by the bandwidth of reading weights for comparison.
int bench_inference(const Arguments& arguments);

/// `colossal bench memory`: finds the largest GPT that trains real steps within the budgets of [memory]. Each try runs
/// in its own process and prints one row. The result is compared with the largest GPT without [memory].
int bench_memory(const Arguments& arguments);

/// `colossal bench serve --url URL`: sends completions to an OpenAI-compatible server and prints tokens per second and
/// latencies. Returns 1 if all requests failed.
int bench_serve(const Arguments& arguments);

/// `colossal bench zero`: prints a row for each number of ranks and each stage. It compares the bytes that a rank sends
/// and holds in a training step with the formulas. Ranks are threads of this process.
int bench_zero(const Arguments& arguments);

/// Adds --ranks, the numbers of ranks to measure.
void add_ranks(CLI::App& app, std::vector<int64_t>& ranks);

/// Returns the numbers, ascending and each once.
std::vector<int64_t> ascending(std::vector<int64_t> numbers);

/// Returns the page of --report: the plots, then a card with `text`, which is escaped, and with `table`, which is HTML.
std::string bench_page(const std::string& title, const std::string& subtitle, std::span<const report::Plot> plots,
                       const std::string& text, const std::string& table);

}  // namespace colossal::cli
