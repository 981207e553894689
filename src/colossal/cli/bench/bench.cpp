#include "colossal/cli/bench/bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "colossal/base/html.h"
#include "colossal/base/suggest.h"
#include "colossal/cli/commands.h"
#include "colossal/report/report_page.h"

namespace colossal::cli {
namespace {

struct Benchmark {
  const char* name;
  const char* help;              // one line
  int (*run)(const Arguments&);  // like the function of a command
};

const Benchmark kBenchmarks[] = {
    {"tensor-parallel", "traffic and memory of each mode of tensor parallelism, compared with the published formulas",
     bench_tensor_parallel},
    {"sequence", "traffic, memory and operations of each mode of sequence parallelism, compared with the formulas",
     bench_sequence},
    {"experts", "traffic, load and time of a mixture of experts on ranks, compared with the formula", bench_experts},
    {"diffusion", "traffic of models that draw pictures on several ranks, compared with the formulas", bench_diffusion},
    {"folding", "traffic of folding models on several ranks, compared with the formulas", bench_folding},
    {"inference", "tokens per second and latencies of generation, compared with the memory bandwidth", bench_inference},
    {"memory", "largest model that trains within budgets of host memory and disk, and the traffic between them",
     bench_memory},
    {"serve", "tokens per second and latencies of an OpenAI-compatible HTTP server under load", bench_serve},
    {"zero", "traffic and memory of each ZeRO stage, compared with the published formulas", bench_zero},
};

void list() {
  std::printf("usage: colossal bench NAME [ARGUMENTS]      colossal bench NAME --help\n\nbenchmarks:\n");
  size_t width = 0;
  for (const auto& benchmark : kBenchmarks) width = std::max(width, std::string(benchmark.name).size());
  for (const auto& benchmark : kBenchmarks)
    std::printf("  %-*s  %s\n", static_cast<int>(width), benchmark.name, benchmark.help);
}

std::string markdown_help() {
  std::string text = "## colossal bench\n\nMeasures a part of the system.\n\nUsage: `colossal bench NAME [options]`\n";
  for (const auto& benchmark : kBenchmarks) text += "\n#" + help_of(benchmark.run, kMarkdownHelp);
  return text;
}

}  // namespace

void add_ranks(CLI::App& app, std::vector<int64_t>& ranks) {
  app.add_option("--ranks", ranks, "numbers of ranks to measure; each rank is a thread")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
}

std::vector<int64_t> ascending(std::vector<int64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::string bench_page(const std::string& title, const std::string& subtitle, std::span<const report::Plot> plots,
                       const std::string& text, const std::string& table) {
  std::string out = "<section class='plots'>";
  for (const report::Plot& plot : plots) out += report::render_plot(plot);
  return report::render_page(
      title, subtitle,
      out + "</section>\n<section class='card'><p>" + html_text(text) + "</p>" + table + "</section>\n");
}

int bench(const Arguments& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") {
    list();
    return 0;
  }
  if (arguments == Arguments{kMarkdownHelp}) throw HelpWanted(markdown_help());
  std::vector<std::string> names;
  for (const auto& benchmark : kBenchmarks) {
    if (arguments[0] == benchmark.name) return benchmark.run({arguments.begin() + 1, arguments.end()});
    names.push_back(benchmark.name);
  }
  throw UsageError("unknown benchmark `" + arguments[0] + "`" + did_you_mean(arguments[0], names) +
                   "; `colossal bench` lists them");
}

}  // namespace colossal::cli
