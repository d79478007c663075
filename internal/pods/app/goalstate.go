package app

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// goalstate is the part of Azure's wire server at 168.63.129.16:80 that a VM's agent polls: GET /machine/?comp=goalstate with the header
// x-ms-version, and /?comp=versions (github.com/Azure/WALinuxAgent, azurelinuxagent/common/protocol/wire.py).
func goalstate(ctx context.Context, p *Process) int {
	return listenHTTP(ctx, p, portArg(p, 80), logCombined(p.Stdout, answerGoalstate))
}

func answerGoalstate(r *request) response {
	switch comp := r.values().Get("comp"); {
	case comp == "versions":
		return xmlResponse(versionsXML)
	case strings.TrimSuffix(r.path, "/") != "/machine":
		return xmlFailure(404, "The requested resource does not exist")
	case comp == "goalstate":
		return goalstateXML(r)
	case comp == "health" || comp == "telemetrydata" || comp == "roleProperties":
		return response{header: header{{"Content-Type", "text/xml; charset=utf-8"}}}
	}
	return xmlFailure(400, "The request is malformed")
}

const versionsXML = `<?xml version="1.0" encoding="utf-8"?>
<Versions>
  <Preferred>
    <Version>2015-04-05</Version>
  </Preferred>
  <Supported>
    <Version>2015-04-05</Version>
    <Version>2012-11-30</Version>
  </Supported>
</Versions>
`

// goalstateXML tells the caller that it is to be started, which it is. The instance is named after its address: a VM has one.
func goalstateXML(r *request) response {
	if r.header.get("x-ms-version") == "" {
		return xmlFailure(400, "The value for one of the HTTP headers is not in the correct format: x-ms-version")
	}
	hostname, _ := os.Hostname()
	return xmlResponse(fmt.Sprintf(`<?xml version="1.0" encoding="utf-8"?>
<GoalState xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:xsd="http://www.w3.org/2001/XMLSchema" xsi:noNamespaceSchemaLocation="goalstate10.xsd">
  <Version>2012-11-30</Version>
  <Incarnation>1</Incarnation>
  <Machine>
    <ExpectedState>Started</ExpectedState>
    <StopRolesDeadlineHint>300000</StopRolesDeadlineHint>
    <LBProbePorts>
      <Port>16001</Port>
    </LBProbePorts>
    <ExpectHealthReport>FALSE</ExpectHealthReport>
  </Machine>
  <Container>
    <ContainerId>%s</ContainerId>
    <RoleInstanceList>
      <RoleInstance>
        <InstanceId>_%s</InstanceId>
        <State>Started</State>
      </RoleInstance>
    </RoleInstanceList>
  </Container>
</GoalState>
`, escapeHTML(hostname), escapeHTML(r.remote.Addr().String())))
}

func xmlResponse(body string) response {
	return content("text/xml; charset=utf-8", []byte(body))
}

func xmlFailure(status int, why string) response {
	resp := xmlResponse(fmt.Sprintf("<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<Error><Code>%s</Code><Message>%s</Message></Error>\n", reasons[status], escapeHTML(why)))
	resp.status = status
	return resp
}
