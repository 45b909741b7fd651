// SPDX-License-Identifier: MIT
#include <algorithm>
#include <map>
#include <sstream>
#include <string>

#include "findings.hpp"
#include "support/end_state.hpp"

namespace redlatch::soak {

void judge_coverage(const std::vector<Entry>& journal, const std::vector<Fault>& faults, std::int64_t seconds,
                    Findings& findings) {
    std::map<std::string, std::uint64_t> seen;
    std::map<std::string, std::uint64_t> least;
    for (const Entry& entry : journal) {
        const std::string kind{kinds.at(entry.kind).name};
        if (entry.what == Entry::What::turn) ++seen["turns of " + kind];
        if (entry.what == Entry::What::gave_up) ++seen["times not got: " + kind];
        if (entry.what == Entry::What::turn && entry.told != 0) {
            ++seen["losses of " + kind];
            ++seen["losses"];
        }
        if (entry.what == Entry::What::latch_wait && entry.read == 1) ++seen["turns of latch"];
        if (entry.what == Entry::What::fenced_write && entry.read == 0) ++seen["stale writes refused"];
    }
    for (const KindInfo& kind : kinds) {
        // Expect only a tenth of the usual number, for slow machines.
        least["turns of " + std::string{kind.name}] =
            static_cast<std::uint64_t>(std::max<std::int64_t>(seconds / 2, 5));
        if (kind.is_lock && seconds >= 600) least["losses of " + std::string{kind.name}] = 1;
        if (kind.kind != Kind::latch) least["times not got: " + std::string{kind.name}] = 1;
    }
    if (seconds >= 60) least["stale writes refused"] = least["losses"] = 1;
    for (const Fault& fault : faults) {
        if (fault.bit) ++seen[std::string{info(fault.kind).name}];
        if (!fault.bit_on.empty()) ++seen[std::string{info(fault.kind).name} + ": " + std::string{fault.bit_on}];
    }
    // Rare commands take about an hour to be struck.
    if (seconds >= 3600)
        for (const std::string& what : bites_of_a_long_run()) least[what] = 1;
    if (faults.size() < static_cast<std::size_t>(seconds)) findings.complain("less than one fault a second");
    // Shorter runs do not reach all kinds of faults.
    for (const FaultInfo& fault : fault_kinds)
        if (seconds >= 60) least[std::string{fault.name}] = 1;
    std::ostringstream said;
    for (const auto& [what, number] : seen) said << what << " " << number << "; ";
    findings.remarks.push_back(said.str());
    for (const std::string& what : test::find_vacuous(seen, least)) findings.complain("too little of " + what);
}

}  // namespace redlatch::soak
